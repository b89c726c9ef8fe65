"""Trackio: the run's settings and everything that is logged, kept on this machine or on a Space of the hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trackio

from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.callback import Callback
from ..events.stages import Stage
from ..events.state import TrainerState


@dataclass
class Trackio(Callback):
    """Reports to one trackio run, which stays the same when training is resumed and when evaluations follow it."""

    stage = Stage.REPORT
    project: str = "huggingface"
    """The project."""
    name: str | None = None
    """The run's name; by default `args.run_name`, or one that trackio makes up."""
    space_id: str | None = None
    """The Space to report to, as `name` or `owner/name`; by default trackio's own choice, which is this machine."""
    bucket_id: str | None = None
    """The bucket of the hub that keeps the Space's data; by default trackio makes one."""
    static_space_id: str | bool | None = None
    """The Space that gets a snapshot after training, if the run reports to a Space: its name, None for one that trackio
    names, or False for no snapshot."""
    on_error: str = "warn"
    """What its failures do: a tracker that is down does not stop the training."""
    run_name: str | None = field(default=None, init=False)
    """The name of the trackio run."""
    _open: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Trackio:
        return cls(
            args.project or cls.project,
            args.run_name,
            args.trackio_space_id,
            args.trackio_bucket_id,
            args.trackio_static_space_id,
        )

    def on_init_end(self) -> None:
        self.run_name = None  # a new trainer, as each trial of a search has, reports to a run of its own

    def on_train_begin(self, run: Run) -> None:
        self._begin(run)

    def on_log(self, run: Run, state: TrainerState, logs: dict[str, Any]) -> None:
        self._begin(run)
        if self._open:
            values = {_in_sections(key): value for key, value in logs.items()}
            trackio.log({**values, "train/global_step": state.global_step}, step=state.global_step)

    def on_train_end(self, run: Run) -> None:
        if not self._open:
            return
        space = trackio.context_vars.current_space_id.get()
        self._finish()
        if space is not None and self.static_space_id is not False:
            trackio.freeze(
                space_id=space,
                project=self.project,
                new_space_id=self.static_space_id,
                private=run.args.hub_private_repo,
            )

    def on_close(self) -> None:
        self._finish()

    def on_end(self) -> None:
        self._finish()  # of what was logged between the sessions

    def state_dict(self) -> dict[str, Any]:
        return {"run_name": self.run_name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_name = state["run_name"]

    def _begin(self, run: Run) -> None:
        if self._open or not run.state.is_world_process_zero:
            return
        size = sum(parameter.numel() for parameter in run.model.parameters())
        session = trackio.init(
            project=self.project,
            name=self.run_name or self.name or run.args.run_name,
            space_id=self.space_id,
            bucket_id=self.bucket_id,
            private=run.args.hub_private_repo,
            resume="allow",
            config={**run.args.to_sanitized_dict(), "model/num_parameters": size},
        )
        self.run_name, self._open = session.name, True

    def _finish(self) -> None:
        if self._open:
            self._open = False
            trackio.finish()


def _in_sections(key: str) -> str:
    """Return `eval_loss` as `eval/loss`, and training values under `train/`."""
    return key.replace("_", "/", 1) if key.startswith(("eval_", "test_")) else f"train/{key}"
