"""Weights & Biases: the run's settings, everything that is logged, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import wandb

from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.callback import Callback
from ..events.control import TrainerControl
from ..events.stages import Stage
from ..events.state import TrainerState


@dataclass
class Wandb(Callback):
    """Reports to one wandb run, which stays the same when training is resumed and when evaluations follow it.

    The run is finished by `trainer.end()`, when the program ends, or, as failed, when training fails.
    """

    stage = Stage.REPORT
    project: str | None = None
    """The project; by default wandb's own."""
    name: str | None = None
    """The run's name; by default `args.run_name`, or one that wandb makes up."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Whether to upload; by default what the environment says."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of `wandb.init`."""
    on_error: str = "warn"
    """What its failures do: a tracker that is down does not stop the training."""
    run_id: str | None = field(default=None, init=False)
    """The id of the wandb run."""
    _session: Any = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Wandb:
        return cls(args.project, args.run_name)

    def on_init_end(self) -> None:
        self.run_id = None  # a new trainer, as each trial of a search has, reports to a run of its own

    def on_train_begin(self, run: Run) -> None:
        self._open(run)

    def on_log(self, run: Run, state: TrainerState, logs: dict[str, Any]) -> None:
        self._open(run)
        if self._session is not None:
            self._session.log({_in_sections(key): value for key, value in logs.items()} | {"step": state.global_step})

    def on_train_end(self, control: TrainerControl) -> None:
        if self._session is not None:
            self._session.summary["stopped"] = control.why("training_stop")

    def on_exception(self) -> None:
        self._finish(failed=True)

    def on_end(self) -> None:
        self._finish(failed=False)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_id = state["run_id"]

    def _open(self, run: Run) -> None:
        if self._session is not None or not run.state.is_world_process_zero:
            return
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
        self.run_id = self._session.id
        # The optimizer step is the axis of everything, whatever wandb counts by itself.
        self._session.define_metric("step")
        self._session.define_metric("*", step_metric="step", step_sync=True)

    def _finish(self, failed: bool) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.finish(exit_code=1 if failed else 0)


def _in_sections(key: str) -> str:
    """Return `eval_loss` as `eval/loss`, and training values under `train/`, as wandb groups them."""
    for prefix in ("eval_", "test_"):
        if key.startswith(prefix):
            return f"{prefix[:-1]}/{key.removeprefix(prefix)}"
    return f"train/{key}"
