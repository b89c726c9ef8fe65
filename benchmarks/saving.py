"""A model and a task for the benchmarks of checkpoints, and the times of the steps of a training.

The model records the time at the start of each forward pass. The time from one pass to the next is the time of a step.
It includes all work between the steps, such as a save.
"""

from __future__ import annotations

import importlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import COMPOSER, HF, IGNITE, LIGHTNING, OURS, RAW, hushed, keep_freed_memory
from contenders import CONTENDERS, Contender, Samples, Task, hf_style, starts
from torch import nn

BETWEEN = 25
"""Steps from one save to the next."""
SYNCHRONOUS = "trainbus, async_save=False"
KINDS: dict[str, Contender] = {
    **{name: CONTENDERS[name] for name in (RAW, OURS)},
    SYNCHRONOUS: partial(hf_style, "trainbus", async_save=False),
    **{name: CONTENDERS[name] for name in (HF, LIGHTNING, IGNITE, COMPOSER)},
}
"""The compared ways to save."""

forwards: list[float] = []
"""The time of each forward pass, in seconds."""
processor: list[float] = []
"""The processor time of the process at each forward pass, in seconds."""


class Large(nn.Module):
    """A model of some million weights. A step reads all of them once and computes little."""

    def __init__(self, millions: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(8, 2)
        self.rows = nn.ParameterList(nn.Parameter(torch.randn(1000, 1000)) for _ in range(round(millions)))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss, which depends on every weight."""
        forwards.append(time.perf_counter())
        processor.append(time.process_time())
        logits = self.head(x)
        loss = nn.functional.cross_entropy(logits, labels) + 1e-9 * sum(row.sum() for row in self.rows)
        return {"loss": loss, "logits": logits}


def zeros(count: int) -> Samples:
    """Return samples of zeros."""
    return Samples(x=torch.zeros(count, 8), labels=torch.zeros(count, dtype=torch.long))


def saving_task(millions: float, save_every: int = 0, resume: str = "") -> Task:
    """Return the task. The model is built once, so that its construction is not measured."""
    model = Large(millions)
    return Task(lambda: model, zeros, batch=4, save_every=save_every, resume=resume)


def steps_of(kind: str, task: Task, steps: int, folder: Path) -> list[float]:
    """Train. Return the time of the start, the times of the forward passes, and the time of the end.

    The trainer, the model and the data are built at the start. The time of the end is when the call returns.
    """
    keep_freed_memory()
    importlib.import_module("torch._dynamo")  # the first optimizer of a process imports it
    forwards.clear()
    processor.clear()
    with hushed():
        KINDS[kind](task, steps, folder)
    return [starts[-1], *forwards, time.perf_counter()]


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of any library in a folder, oldest first."""
    found = [path for path in folder.iterdir() if any(word in path.name for word in ("checkpoint", "step"))]
    return sorted(found, key=lambda path: int("".join(each for each in path.stem if each.isdigit())))


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    files: Any = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())
