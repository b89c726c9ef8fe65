"""Weights & Biases: the settings of the run, the logged values, and why training stopped."""

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
    """Reports to one Weights & Biases run. A resumed training, and evaluations after it, report to the same run.

    `report_to="wandb"` builds it, or list `Wandb(project="demo", mode="offline")`. The wandb run finishes at
    `trainer.end()` or at the end of the program. It is marked as failed if training raises. The step axis is the
    optimizer step.
    """

    project: str | None = None
    """The project. Default: the one that wandb chooses, or `project` of the arguments."""
    name: str | None = None
    """The name of the run. Default: `args.run_name`, else a generated name."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Whether to upload. Default: the environment variable `WANDB_MODE`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Additional options of `wandb.init`. They override the options that this callback sets."""
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
        # Use the optimizer step as the x-axis of all metrics, instead of wandb's own step counter.
        self._session.define_metric("step")
        self._session.define_metric("*", step_metric="step", step_sync=True)
        known: str = self._session.id
        return known

    def report(self, logs: Mapping[str, Any], step: int) -> None:
        self._session.log({in_sections(key): value for key, value in logs.items()} | {"step": step})

    def leave(self, failed: bool) -> None:
        session, self._session = self._session, None
        session.finish(exit_code=1 if failed else 0)
