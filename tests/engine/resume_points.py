"""Runs to be stopped at any step and resumed: kinds of data, collators that draw random numbers, workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.data import SizedStream, Stream, points
from support.models import Regression
from support.outcomes import equal, history, same_weights, weights
from support.trainers import regression_trainer
from trainbus import default_data_collator

ROWS = 22
"""In batches of 4, the last of an epoch has 2."""


class RandomStart(Stream):
    """One that begins at a place that it draws, from torch's global generator, anew each time."""

    def __iter__(self) -> Iterator[Any]:
        first = int(torch.randint(len(self.rows), ()))
        return iter(self.rows[first:] + self.rows[:first])


class Stateful(Stream):
    """One that says where it is, and counts the rows that are read of it."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(rows)
        self.position, self.read = 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.rows):
            self.position += 1
            self.read += 1
            yield self.rows[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def streamed(shuffled: bool) -> Any:
    """A `datasets.IterableDataset` of two shards, with a transform, shuffled in a buffer or not."""
    import datasets

    rows = datasets.Dataset.from_list([{"x": row["x"].tolist(), "labels": row["labels"]} for row in points(ROWS)])
    stream = rows.to_iterable_dataset(num_shards=2)
    if shuffled:
        stream = stream.shuffle(seed=3, buffer_size=5)
    return stream.map(lambda row: {"x": [2 * value for value in row["x"]]}).with_format("torch")


DATA: dict[str, Callable[[], Any]] = {
    "rows": lambda: points(ROWS),
    "rows of a length": lambda: [{**row, "length": number % 7} for number, row in enumerate(points(ROWS))],
    "stream": lambda: Stream(points(ROWS)),
    "sized stream": lambda: SizedStream(points(ROWS)),
    "stream with a random start": lambda: RandomStart(points(ROWS)),
    "stream with a state": lambda: Stateful(points(ROWS)),
    "datasets": lambda: streamed(shuffled=False),
    "datasets, shuffled": lambda: streamed(shuffled=True),
}


def noisy(draw: Callable[[], float]) -> Callable[[list[Any]], Any]:
    """A collator that shifts each batch by a number that it draws."""

    def collate(features: list[Any]) -> Any:
        batch = default_data_collator(features)
        batch["x"] = batch["x"] + draw()
        return batch

    return collate


COLLATORS: dict[str, Callable[[list[Any]], Any]] = {
    "pure": default_data_collator,
    "torch": noisy(lambda: float(torch.rand(()))),
    "numpy": noisy(lambda: float(np.random.randn())),
    "python": noisy(random.random),
}


def run_of(
    folder: Path,
    data: str,
    collator: str,
    accumulate: int = 1,
    workers: int = 0,
    *,
    seed: int = 0,
    attach: Callable[[Any], None] = lambda run: None,
    eval_dataset: Any = None,
    **args: Any,
) -> Any:
    """A trainer of two epochs whose model has dropout, and that logs every second step. `attach` adds its handlers."""
    steps = {1: 12, 3: 4}[accumulate]
    args = {
        "gradient_accumulation_steps": accumulate,
        "dataloader_num_workers": workers,
        "max_steps": steps,
        "learning_rate": 0.02,
        "logging_steps": 2,
        "save_strategy": "no",
        **args,
    }
    model = Regression(dropout=0.3, seed=seed)
    data_of = {"train_dataset": DATA[data](), "eval_dataset": eval_dataset}
    run = regression_trainer(folder, model, args=args, **data_of, data_collator=COLLATORS[collator])
    attach(run)
    return run


def mismatches(folder: Path, steps: list[int] | None = None, **setting: Any) -> list[str]:
    """Resume a run at each of its steps, or at some; return in what the ends differ from that of the unbroken run."""
    whole = run_of(folder / "whole", **setting, **{"save_strategy": "steps", "save_steps": 1})
    whole.train()
    wrong = []
    for step in steps or range(1, whole.state.global_step):
        again = run_of(folder / "again", **setting, seed=1)
        again.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{step}"))
        compared = {
            "weights": same_weights(weights(again.model), weights(whole.model)),
            "logs": history(again) == history(whole),
            "optimizer": equal(again.optimizer.state_dict(), whole.optimizer.state_dict()),
            "schedule": equal(again.lr_scheduler.state_dict(), whole.lr_scheduler.state_dict()),
            "samples": again.state.samples_seen == whole.state.samples_seen,
        }
        wrong += [f"step {step}: {what}" for what, same in compared.items() if not same]
    return wrong
