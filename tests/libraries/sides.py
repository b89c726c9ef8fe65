"""One library, imported twice in one process: with the Trainer of transformers, and with the Trainer of trainbus."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trainbus import as_transformers

TIMES = ("_runtime", "_per_second", "_flos", "step_time")
"""Endings of logged values that measure time or cost."""

Trained = Callable[[str], Any]
"""Builds the trainer of a case, given the output folder."""


class Sides:
    """The modules of some packages on both sides."""

    def __init__(self, *packages: str) -> None:
        """Import `packages` twice. Each may need the ones before it."""
        self.packages = packages
        self._modules: dict[str, dict[str, ModuleType]] = {"theirs": {}, "ours": {}}
        for side in self._modules:
            with self.of(side):
                for package in packages:
                    importlib.import_module(package)

    @contextmanager
    def of(self, side: str) -> Iterator[None]:
        """Make the modules of a side those that `import` finds. Modules that are imported inside belong to it."""
        before = self._take()
        # Other tests of this process hold the names of transformers, hence `strict=False`.
        with as_transformers(strict=False) if side == "ours" else nullcontext():
            sys.modules.update(self._modules[side])
            try:
                yield
            finally:
                self._modules[side] = self._take()
                sys.modules.update(before)

    def _take(self) -> dict[str, ModuleType]:
        """Remove the modules of the packages from those that are imported, and return them."""
        names = [name for name in sys.modules if name.partition(".")[0] in self.packages]
        return {name: sys.modules.pop(name) for name in names}


@dataclass
class Outcome:
    """What a training leaves."""

    trainer: Any
    """The trainer."""
    weights: dict[str, torch.Tensor]
    """The weights after the training, with the best model loaded."""
    logs: list[dict[str, Any]]
    """The log history without times."""
    folder: Path
    """The output folder."""

    @property
    def best(self) -> str:
        """The name of the best checkpoint; empty if there is none."""
        return Path(self.trainer.state.best_model_checkpoint or "").name

    def differences(self, other: Outcome, *, without: tuple[str, ...] = ()) -> list[Any]:
        """Return what differs: names of weights, and pairs of log entries.

        Args:
            other: the other training.
            without: endings of logged values that are not compared.
        """
        assert self.weights.keys() == other.weights.keys()
        assert len(self.logs) == len(other.logs) > 2
        names = [name for name, value in self.weights.items() if not torch.equal(value, other.weights[name])]
        logs = [pair for pair in zip(self.logs, other.logs) if _without(pair[0], without) != _without(pair[1], without)]
        return [*names, *logs]


def _without(entry: dict[str, Any], endings: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if not key.endswith((*TIMES, *endings))}


def train(build: Trained, folder: Path, resume: bool = False) -> Outcome:
    """Train a case in a folder."""
    trainer = build(str(folder))
    trainer.train(resume_from_checkpoint=True if resume else None)
    weights = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}
    return Outcome(trainer, weights, [dict(entry) for entry in trainer.state.log_history], folder)


@dataclass
class Compared:
    """One case, trained with both Trainers, and resumed with trainbus from its first checkpoint."""

    theirs: Outcome
    """Trained with transformers."""
    ours: Outcome
    """Trained with trainbus."""
    resumed: Outcome
    """Resumed with trainbus from the checkpoint of step 4."""


def compare(sides: Sides, build: Trained, folder: Path) -> Compared:
    """Train a case on both sides, and resume it."""
    with sides.of("theirs"):
        theirs = train(build, folder / "theirs")
    with sides.of("ours"):
        ours = train(build, folder / "ours")
        shutil.copytree(folder / "ours" / "checkpoint-4", folder / "resumed" / "checkpoint-4")
        resumed = train(build, folder / "resumed", resume=True)
    return Compared(theirs, ours, resumed)
