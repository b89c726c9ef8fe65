"""Measure the time to reach a given loss on text of variable length, with packing, length grouping, and plain padding.

    python benchmarks/packing.py
    python benchmarks/packing.py --rounds 3 --limit 1.2

A small Llama learns a synthetic language. The contenders are:

- a plain loop with random batches,
- transformers' Trainer and trainbus, each with random batches and with `train_sampling_strategy="group_by_length"`,
- trainbus with `Packing`.

All have the same model, optimizer, schedule and number of samples in a step. Only the order of samples and the padding
differ. They alternate within a round. The loss on held-out samples is measured every few steps. The time for it does
not count. The target is the highest of the final losses of all contenders and rounds, so each contender reaches it. The
value of a round is the CPU time of the process until the loss reaches the target.

With `--limit`, the benchmark fails if packing is less than this many times as fast as transformers with length
grouping.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from common import HF, OURS, RAW, Benchmark, hushed, interleave
from torch.utils.data import DataLoader

import trainbus

VOCABULARY, BATCH, HELD_OUT, EVERY, LEARNING_RATE = 256, 16, 24, 4, 3e-3
CONTENDERS = (RAW, HF, f"{HF}, grouped", OURS, f"{OURS}, grouped", f"{OURS}, Packing")
GROUPED = f"{HF}, grouped"


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
    """Records the CPU time of the training and the held-out loss, every few steps."""

    def __init__(self, held_out: dict[str, torch.Tensor]) -> None:
        self.held_out = held_out
        self.spent, self.began = 0.0, 0.0
        self.curve: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Start the clock."""
        self.began = time.process_time()

    def step(self, step: int, model: Any) -> None:
        """Record the held-out loss, if it is due. The time to compute it does not count."""
        if step % EVERY:
            return
        self.spent += time.process_time() - self.began
        model.eval()
        with torch.no_grad():
            self.curve.append((self.spent, float(model(**self.held_out).loss)))
        model.train()
        self.began = time.process_time()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.step(state.global_step, model)


def train_raw(watch: Watch, rows: list[Any], steps: int) -> None:
    """Train with a plain loop, with random batches."""
    trained = model().train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    watch.begin()
    for step, batch in enumerate(DataLoader(rows, BATCH, shuffle=True, collate_fn=pad), 1):
        trained(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        watch.step(step, trained)
        if step == steps:
            break


def curve(name: str, rows: list[Any], held_out: dict[str, torch.Tensor], steps: int, folder: str) -> Any:
    """Train one contender. Return the pairs of time and held-out loss."""
    watch = Watch(held_out)
    if name == RAW:
        torch.manual_seed(0)
        train_raw(watch, rows, steps)
        return watch.curve
    library: Any = transformers if name.startswith(HF) else trainbus
    args = library.TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        train_sampling_strategy="group_by_length" if "grouped" in name else "random",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    collator = trainbus.Packing() if "Packing" in name else pad
    with hushed():
        library.Trainer(model(), args, data_collator=collator, train_dataset=rows, callbacks=[watch]).train()
    return watch.curve


def main() -> int:
    """Run all rounds and print the table."""
    benchmark = Benchmark(__doc__, rounds=3)
    benchmark.option("--steps", type=int, help="by default one epoch")
    benchmark.option("--limit", type=float, help="the lowest accepted ratio to transformers with length grouping")
    options = benchmark.begin()
    transformers.logging.set_verbosity_error()
    samples = 192 if options.quick else 512
    rows, held_out = language(samples, 1), pad(language(HELD_OUT, 2))
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: partial(curve, name, rows, held_out, options.steps or samples // BATCH, folder) for name in CONTENDERS
        }
        curves = interleave(runs, options.rounds, warm_ups=0)
    target = max(each[-1][1] for runs_of_one in curves.values() for each in runs_of_one)
    spent = {
        name: [next(seconds for seconds, loss in each if loss <= target) for each in runs_of_one]
        for name, runs_of_one in curves.items()
    }
    print(f"held-out loss {target:.3f}")
    benchmark.add("time to equal loss", "s", spent, base=GROUPED)
    if options.limit is not None:
        ratio = benchmark.result.ratio("time to equal loss", f"{OURS}, Packing")
        benchmark.limit(ratio, 1 / options.limit, "time of packing, relative to length grouping of transformers")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
