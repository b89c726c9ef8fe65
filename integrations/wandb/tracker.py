"""Weights & Biases: the run's settings, everything that is logged, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import wandb

from ...callbacks.base.tracker import Tracker, in_sections
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.control import TrainerControl


@dataclass
class Wandb(Tracker):
    """Reports to one wandb run, which stays the same when training is resumed and when evaluations follow it.

    The run is finished by `trainer.end()`, when the program ends, or, as failed, when training fails.
    """

    project: str | None = None
    """The project; by default wandb's own."""
    name: str | None = None
    """The run's name; by default `args.run_name`, or one that wandb makes up."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Whether to upload; by default what the environment says."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of `wandb.init`."""
    _session: Any = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Wandb:
        return cls(args.project, args.run_name)

    def on_train_end(self, control: TrainerControl) -> None:
        if self._reports:
            self._session.summary["stopped"] = control.why("training_stop")

    def open(self, run: Run) -> str:
        self._session = wandb.init(
            **{
                "project": self.project,
                "name": self.name or run.args.run_name,
                "mode": self.mode,
                "id": self.run_id,
                "resume": "allow" if self.run_id else None,
                "config": run.args.to_sanitized_dict(),
                "reinit": "create_new",
                **self.options,
            }
        )
        # The optimizer step is the axis of everything, whatever wandb counts by itself.
        self._session.define_metric("step")
        self._session.define_metric("*", step_metric="step", step_sync=True)
        known: str = self._session.id
        return known

    def report(self, logs: Mapping[str, Any], step: int) -> None:
        self._session.log({in_sections(key): value for key, value in logs.items()} | {"step": step})

    def leave(self, failed: bool) -> None:
        session, self._session = self._session, None
        session.finish(exit_code=1 if failed else 0)
