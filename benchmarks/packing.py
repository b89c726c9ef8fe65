"""Measure the time to equal loss on text of variable length: with packing, length grouping, and plain padding.

    python benchmarks/packing.py
    python benchmarks/packing.py --rounds 3 --limit 1.2

A small Llama learns a synthetic language. The contenders are transformers' Trainer with random batches and with
`train_sampling_strategy="group_by_length"`, and trainbus with the same, and with `Packing`. All have the same batches
of samples in a step, model, optimizer and seed; only the order of samples and the padding differ. They alternate within
a round. The loss on held-out samples is measured every few steps, and its time is not counted. The target is the
highest of the final losses, so each contender reaches it. It is taken from all rounds, because losses do not depend on
time. The table shows the CPU time of the process until the loss is at the target, and the median of the ratios to
transformers with length grouping, with the lowest and the highest.

`--limit` fails if packing is less than this many times as fast as transformers with length grouping.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import transformers

import trainbus

VOCABULARY, SAMPLES, HELD_OUT, EVERY = 256, 512, 24, 4


def language(count: int, seed: int) -> list[dict[str, Any]]:
    """Return samples of a Markov chain with a long tail of lengths, from 16 to 384 tokens."""
    numbers = np.random.default_rng(seed)
    following = np.random.default_rng(0).integers(1, VOCABULARY, (VOCABULARY, 4))
    rows = []
    for length in np.clip(numbers.lognormal(4.0, 0.8, count).astype(int), 16, 384):
        ids, choices = [int(numbers.integers(1, VOCABULARY))], numbers.integers(4, size=length)
        for choice in choices[1:]:
            ids.append(int(following[ids[-1], choice]))
        rows.append({"input_ids": ids})
    return rows


def pad(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad samples to the longest of the batch. Labels are the tokens."""
    sequences = [torch.tensor(row["input_ids"]) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in sequences], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def model() -> Any:
    """Return a Llama of 0.14 million weights."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            pad_token_id=0,
            use_cache=False,
        )
    )


class Watch(transformers.TrainerCallback):
    """Notes the CPU time of the training and the held-out loss every few steps."""

    def __init__(self, held_out: dict[str, torch.Tensor]) -> None:
        self.held_out = held_out
        self.spent, self.began = 0.0, 0.0
        self.curve: list[tuple[float, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % EVERY:
            return
        self.spent += time.process_time() - self.began
        model.eval()
        with torch.no_grad():
            self.curve.append((self.spent, float(model(**self.held_out).loss)))
        model.train()
        self.began = time.process_time()


def curve(name: str, rows: list[Any], held_out: dict[str, torch.Tensor], steps: int, folder: str) -> Any:
    """Train one contender. Return the pairs of time and held-out loss."""
    library: Any = transformers if name.startswith("transformers") else trainbus
    args = library.TrainingArguments(
        folder,
        per_device_train_batch_size=16,
        max_steps=steps,
        learning_rate=3e-3,
        train_sampling_strategy="group_by_length" if "grouped" in name else "random",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    watch = Watch(held_out)
    collator = trainbus.Packing() if "Packing" in name else pad
    library.Trainer(model(), args, data_collator=collator, train_dataset=rows, callbacks=[watch]).train()
    return watch.curve


CONTENDERS = ("transformers", "transformers, grouped", "trainbus", "trainbus, grouped", "trainbus, Packing")


def main() -> None:
    """Run all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=SAMPLES // 16, help="by default one epoch")
    parser.add_argument("--limit", type=float, help="the lowest accepted ratio to transformers with length grouping")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows, held_out = language(SAMPLES, 1), pad(language(HELD_OUT, 2))
    curves: dict[str, list[Any]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as quiet:
        for turn in range(options.rounds):
            for name in CONTENDERS if turn % 2 == 0 else CONTENDERS[::-1]:
                shown, sys.stdout = sys.stdout, quiet
                try:
                    curves[name].append(curve(name, rows, held_out, options.steps, folder))
                finally:
                    sys.stdout = shown
    target = max(each[-1][1] for runs in curves.values() for each in runs)
    spent = {
        name: [next(seconds for seconds, loss in each if loss <= target) for each in runs]
        for name, runs in curves.items()
    }
    print(f"held-out loss {target:.3f}\n")
    print("| Contender | CPU seconds to equal loss | all steps | times transformers, grouped |")
    print("| --- | --- | --- | --- |")
    for name in CONTENDERS:
        ratios = sorted(theirs / own for own, theirs in zip(spent[name], spent["transformers, grouped"]))
        whole = statistics.median(each[-1][0] for each in curves[name])
        middle = statistics.median(ratios)
        print(
            f"| {name} | {statistics.median(spent[name]):.1f} | {whole:.1f} | "
            f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )
    if options.limit is not None and middle < options.limit:
        sys.exit(f"Packing is {middle:.2f} times as fast as length grouping, and the limit is {options.limit}.")


if __name__ == "__main__":
    main()
