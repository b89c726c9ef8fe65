"""Trackio: the run's settings and everything that is logged, kept on this machine or on a Space of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trackio

from ..callbacks.base.tracker import Tracker, in_sections
from ..engine.arguments import TrainingArguments
from ..engine.run import Run


@dataclass
class Trackio(Tracker):
    """Reports to one trackio run, which stays the same when training is resumed and when evaluations follow it."""

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

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Trackio:
        return cls(
            args.project or cls.project,
            args.run_name,
            args.trackio_space_id,
            args.trackio_bucket_id,
            args.trackio_static_space_id,
        )

    def on_train_end(self, run: Run) -> None:
        if not self._reports:
            return
        space = trackio.context_vars.current_space_id.get()
        self.finish()
        if space is not None and self.static_space_id is not False:
            trackio.freeze(
                space_id=space,
                project=self.project,
                new_space_id=self.static_space_id,
                private=run.args.hub_private_repo,
            )

    def on_close(self) -> None:
        self.finish()

    def open(self, run: Run) -> str:
        size = sum(parameter.numel() for parameter in run.model.parameters())
        session = trackio.init(
            project=self.project,
            name=self.run_id or self.name or run.args.run_name,
            space_id=self.space_id,
            bucket_id=self.bucket_id,
            private=run.args.hub_private_repo,
            resume="allow",
            config={**run.args.to_sanitized_dict(), "model/num_parameters": size},
        )
        known: str = session.name
        return known

    def report(self, logs: Mapping[str, Any], step: int) -> None:
        values = {in_sections(key): value for key, value in logs.items()}
        trackio.log({**values, "train/global_step": step}, step=step)

    def leave(self, failed: bool) -> None:
        trackio.finish()
