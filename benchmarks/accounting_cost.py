"""Measure the time that the accounting adds to a step, end to end.

    python benchmarks/accounting_cost.py

The accounting measures the time of each part of a step. One training alternates between blocks of steps with and
without accounting, so both kinds of blocks see the same model, data and load of the machine. In a block without
accounting, the list of time marks stays empty. The benchmark prints the ratio of the median step with accounting to the
median step without, and the ratio of neighbouring blocks with its quartiles. It counts the processor time of the
training thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from trainbus import Callback, Trainer, TrainingArguments
from trainbus.engine.stepper import Stepper

BLOCK = 100
"""The steps of a block."""


class NoMarks(list[Any]):
    """A list of marks that stays empty."""

    def __iadd__(self, marks: Any) -> NoMarks:
        return self

    def extend(self, marks: Any) -> None:
        return None


class Alternate(Callback):
    """Turns the accounting on and off from block to block, and keeps the processor seconds of a step in each block."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.marks: tuple[Any, Any] | None = None
        self.began = 0.0

    def on_step_begin(self, run: Any, state: Any) -> None:
        if state.global_step % BLOCK:
            return
        now = time.thread_time()
        if self.marks is None:
            self.marks = (NoMarks(), run.bus.timeline.marks)
            self.holders = [run.bus.timeline, *(each for each in gc.get_objects() if type(each) is Stepper)]
            gc.collect()
            gc.freeze()
        else:
            self.seconds.append((now - self.began) / BLOCK)
        marks = self.marks[len(self.seconds) % 2]
        for holder in self.holders:
            holder.marks = marks
        self.began = time.thread_time()


class Net(nn.Module):
    """A perceptron with a step of about a millisecond."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.head(self.body(x)), labels)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=240, help="the number of blocks of 100 steps")
    parser.add_argument("--width", type=int, default=256, help="the width of the perceptron")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(4096, 64)
    alternate = Alternate()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=BLOCK * (options.blocks + 1),
            per_device_train_batch_size=16,
            **{"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "log_level": "error"},
            **{"logging_strategy": "no"},
        )
        rows = [{"x": row, "labels": (row.sum() > 0).long()} for row in x]
        Trainer(Net(options.width), args, train_dataset=rows, callbacks=[alternate]).train()
    seconds = alternate.seconds[10:]  # the first blocks prepare much
    off, on = seconds[::2], seconds[1::2]
    pairs = sorted(
        (second / first) if number % 2 == 0 else (first / second)
        for number, (first, second) in enumerate(pairwise(seconds))
    )
    quarter = len(pairs) // 4
    print(f"step without accounting {1e6 * statistics.median(off):.1f} us, with {1e6 * statistics.median(on):.1f} us")
    print(f"ratio of medians {statistics.median(on) / statistics.median(off):.4f}")
    print(
        f"ratio of neighbouring blocks {statistics.median(pairs):.4f} "
        f"(quartiles {pairs[quarter]:.4f} to {pairs[-quarter]:.4f}, {len(pairs)} pairs)"
    )


if __name__ == "__main__":
    main()
