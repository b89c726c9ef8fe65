"""Make a real small run, and return its results: events, ledger, logs, metrics and weights."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import Checkpoint, Evaluate, Log, Trainer, every
from ..events import Entry, Trace, record
from .tiny import one_thread, timeless, tiny_trainer, weights


@dataclass
class TinyRun:
    """The results of a small run."""

    trainer: Trainer
    """The trainer. You can train, evaluate and predict with it again, because `Trainer.end()` was not called."""
    trace: Trace
    """The events, with the number of completed steps."""
    ledger: list[Entry]
    """All requests and vetoes, oldest first."""
    logs: list[dict[str, Any]]
    """The log history, without speeds and durations."""
    weights: dict[str, torch.Tensor]
    """A copy of the weights at the end."""
    folder: Path
    """The output folder."""

    @property
    def events(self) -> list[str]:
        """The names of the events, in order."""
        return self.trace.events

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The logged metrics of each evaluation, each with its `step`."""
        return [entry for entry in self.logs if any(name.startswith("eval_") for name in entry)]

    @property
    def steps(self) -> int:
        """The number of completed steps."""
        return self.trainer.state.global_step

    def requests(self, flag: str, author: str | None = None) -> list[tuple[int, str, str]]:
        """Return step, author and reason of each request of a flag, such as `save`.

        Args:
            flag: the flag, without `should_`.
            author: the id of the callback that made the requests; None for the requests of all callbacks.
        """
        return [
            (entry.step, entry.author, entry.reason)
            for entry in self.ledger
            if entry.flag == flag and entry.action == "request" and author in (None, entry.author)
        ]


def beside(callbacks: tuple[Any, ...], save_every: int = 2) -> list[Any]:
    """Return callbacks that log, evaluate and save, to add to the callbacks of the user.

    The returned callbacks log each step, evaluate every second step, and save every `save_every` steps.

    Args:
        callbacks: the callbacks of the user. If they contain a `Log`, an `Evaluate` or a `Checkpoint`, the function
            adds no other callback of this class.
        save_every: the steps between two checkpoints.
    """
    defaults = (Log(every(1)), Evaluate(every(2)), Checkpoint(every(save_every)))
    return [own for own in defaults if not any(isinstance(callback, type(own)) for callback in callbacks)]


def train(trainer: Trainer, **options: Any) -> TinyRun:
    """Train, and return the results of the run. `options` are passed to `Trainer.train`."""
    with one_thread(), record(trainer.bus) as trace:
        trainer.train(**options)
    logs = [timeless(entry) for entry in trainer.state.log_history]
    ledger = list(trainer.control.ledger)
    return TinyRun(trainer, trace, ledger, logs, weights(trainer.model), Path(trainer.args.output_dir))


def tiny_run(
    *callbacks: Any, folder: Path | str | None = None, resume_from_checkpoint: str | bool | None = None, **options: Any
) -> TinyRun:
    """Train a tiny model for 6 steps with these callbacks.

    The run logs every step, and evaluates and saves every second step. To change an interval, pass a `Log`, an
    `Evaluate` or a `Checkpoint` in `callbacks`.

    Args:
        callbacks: the callbacks under test.
        folder: the output folder. Default: a new temporary one.
        resume_from_checkpoint: as in `Trainer.train`.
        **options: arguments of `Trainer` and of `TrainingArguments`, such as `max_steps=20` or `model_init=MyModel`.
    """
    folder = tempfile.mkdtemp(prefix="tiny-run-") if folder is None else folder
    around = [own for own in beside(callbacks) if not (isinstance(own, Evaluate) and "eval_strategy" in options)]
    trainer = tiny_trainer(folder, *around, *callbacks, **options)
    return train(trainer, resume_from_checkpoint=resume_from_checkpoint)
