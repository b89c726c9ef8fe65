"""Trackio: the settings of the run and the logged values, on this machine or on a Space of the hub."""

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
    """Reports to one Trackio run. A resumed training, and evaluations after it, report to the same run.

    `report_to="trackio"` builds it, or list `Trackio(project="demo", space_id="me/demo")`.
    """

    project: str = "huggingface"
    """The project."""
    name: str | None = None
    """The name of the run. Default: `args.run_name`, else a generated name."""
    space_id: str | None = None
    """The Space to report to, as `name` or `owner/name`. Default: this machine."""
    bucket_id: str | None = None
    """The bucket on the hub for the data of the Space. Default: Trackio creates one."""
    static_space_id: str | bool | None = None
    """The Space for a static snapshot after training, if the run reports to a Space. None lets Trackio choose its name.
    False writes no snapshot."""

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
