"""Measure the time of an evaluation relative to a plain torch loop that does the same work.

    python benchmarks/evaluation.py
    python benchmarks/evaluation.py --rounds 9 --limit 2

The models are a perceptron, whose batches take 0.2 ms, and a BERT with two layers. All contenders evaluate the same
rows with the same weights: load and collate a batch, forward without gradients, and keep the loss of each row; with
metrics, also logits and labels, and the accuracy. They must return the same loss.

The contenders alternate, and the time is the CPU time of the process, so other processes count little. The output shows
the median time of a batch, and the median, the least and the greatest of the ratios within a round. `--limit` fails if
the median ratio of trainbus is above it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from step_overhead import BATCH, Model, Points
from torch import nn
from torch.utils.data import DataLoader

import trainbus

Rows = list[dict[str, Any]]
Contender = Callable[[], float]
"""Evaluates once and returns the loss."""


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of rows whose greatest logit is at the label."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def bert() -> tuple[nn.Module, Rows]:
    """Return a BERT of two layers, and rows of 32 tokens."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    tokens = torch.randint(0, 1000, (BATCH * 40, 32), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row[0] % 2} for row in tokens]
    return transformers.BertForSequenceClassification(config), rows


def perceptron() -> tuple[nn.Module, Any]:
    """Return a perceptron and its rows."""
    return Model(), Points(BATCH * 400)


def raw(model: nn.Module, rows: Any, with_metrics: bool) -> Contender:
    """Return a plain loop."""

    def evaluate() -> float:
        model.eval()
        losses, logits, labels = [], [], []
        with torch.no_grad():
            for batch in DataLoader(rows, BATCH):
                outputs = model(**batch)
                losses.append(outputs["loss"].repeat(len(batch["labels"])))
                if with_metrics:
                    logits.append(outputs["logits"])
                    labels.append(batch["labels"])
        if with_metrics:
            found, wanted = torch.cat(logits).numpy(), torch.cat(labels).numpy()
            float((found.argmax(-1) == wanted).mean())
        return float(torch.cat(losses).numpy().mean())

    return evaluate


def trainer(library: Any, model: nn.Module, rows: Any, with_metrics: bool, folder: str) -> Contender:
    """Return the `evaluate` of a Trainer. Both libraries get the same arguments."""
    args = library.TrainingArguments(
        folder, per_device_eval_batch_size=BATCH, use_cpu=True, disable_tqdm=True, report_to="none"
    )
    metrics = accuracy if with_metrics else None
    built = library.Trainer(model, args, eval_dataset=rows, compute_metrics=metrics)
    return lambda: float(built.evaluate()["eval_loss"])


def measure(name: str, contenders: dict[str, Contender], batches: int, rounds: int) -> float:
    """Print the times of an evaluation. Return the median ratio of trainbus to the plain loop."""
    losses = {each: evaluate() for each, evaluate in contenders.items()}  # also warms up
    assert np.ptp(list(losses.values())) == 0, f"the contenders differ: {losses}"
    times: dict[str, list[float]] = {each: [] for each in contenders}
    for number in range(rounds):
        for each in list(contenders)[:: 1 if number % 2 else -1]:
            gc.collect()
            began = time.process_time()
            contenders[each]()
            times[each].append((time.process_time() - began) / batches)
    middle = 0.0
    for each, own in times.items():
        ratios = [mine / plain for mine, plain in zip(own, times["raw"])]
        middle = statistics.median(ratios) if each == "trainbus" else middle
        print(
            f"{name:<24} {each:<13} {statistics.median(own) * 1e6:9.0f} us a batch   ratio "
            f"{statistics.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return middle


def main() -> None:
    """Measure each model, without and with metrics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often each contender evaluates")
    parser.add_argument("--limit", type=float, help="the greatest median ratio of trainbus to the plain loop")
    given = parser.parse_args()
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for make in (perceptron, bert):
            torch.manual_seed(0)
            model, rows = make()
            for with_metrics in (False, True):
                contenders = {"raw": raw(model, rows, with_metrics)}
                for library in (trainbus, transformers):
                    contenders[library.__name__] = trainer(library, model, rows, with_metrics, folder)
                quiet = {each: _quietly(evaluate) for each, evaluate in contenders.items()}
                name = make.__name__ + (", metrics" if with_metrics else ", loss")
                worst = max(worst, measure(name, quiet, len(rows) // BATCH, given.rounds))
    if given.limit is not None and worst > given.limit:
        sys.exit(f"An evaluation takes {worst:.2f} times as long as a plain loop; the limit is {given.limit}.")


def _quietly(evaluate: Contender) -> Contender:
    def call() -> float:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return evaluate()

    return call


if __name__ == "__main__":
    main()
