"""The Trackio tracker: records settings and logged values on this machine or on a Space of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import trackio

from ..callbacks.base.row_tracker import Opening, Outcome, RowTracker, TrackerSession
from ..engine.arguments import TrainingArguments
from ..engine.optim.sizes import count_elements
from ..engine.run import Run
from ..events.control import TrainerControl
from ..events.errors import ArgumentError
from ..events.stages import Stage, order


class TrackioSession(TrackerSession):
    """An open run of Trackio."""

    def __init__(self, live: Any, resumed: bool) -> None:
        self.live, self.run_id = live, live.name
        self.space = trackio.context_vars.current_space_id.get()
        if resumed:
            self.last_step = int(getattr(live, "_next_step", 0)) - 1

    def write(self, row: dict[str, Any], step: int) -> None:
        trackio.log(row, step=step)

    def finish(self, outcome: Outcome) -> None:
        trackio.finish()


@dataclass
class Trackio(RowTracker):
    """Reports to one Trackio run. A resumed training, and its later evaluations, report to the same run.

    Set `report_to="trackio"`, or add `Trackio(project="demo", space_id="me/demo")` to the callbacks.

    Raises:
        ArgumentError: if `static_space_id` is True.
    """

    service: ClassVar[str] = "Trackio"

    project: str = "huggingface"
    """The name of the project."""
    name: str | None = None
    """The name of the run. Default: `args.run_name`, else a generated name."""
    space_id: str | None = None
    """The Space of the hub that receives the values, as `name` or `owner/name`. Default: the values stay on this
    machine."""
    bucket_id: str | None = None
    """The bucket on the hub for the data of the Space. Default: Trackio creates a bucket."""
    static_space_id: str | bool | None = None
    """The name of the Space for a static snapshot of the Space `space_id`. Trackio makes the snapshot after training.
    None: Trackio chooses the name. False: no snapshot. If the values stay on this machine, there is no snapshot."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.static_space_id is True:
            raise ArgumentError(
                "Trackio(static_space_id=True) names no Space. Set a name such as 'owner/name', None for a name that "
                "Trackio chooses, or False for no snapshot. The argument is `trackio_static_space_id`."
            )

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Trackio:
        return cls(
            args.project or cls.project,
            args.run_name,
            args.trackio_space_id,
            args.trackio_bucket_id,
            args.trackio_static_space_id,
        )

    def new_id(self, run: Run) -> str:
        return ""  # the service makes it

    def connect(self, run: Run, opening: Opening) -> Callable[[], TrackerSession]:
        size = count_elements(run.model.parameters())
        options: dict[str, Any] = {
            "project": self.project,
            "name": opening.run_id or self.name or run.args.run_name,
            "space_id": self.space_id,
            "bucket_id": self.bucket_id,
            "private": run.args.hub_private_repo,
            "resume": "allow",
            "config": {**run.args.to_sanitized_dict(), "model/num_parameters": size},
        }
        return lambda: TrackioSession(trackio.init(**options), resumed=opening.resumes > 0)

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        if isinstance(self._session, TrackioSession):  # for code that calls `trackio.log`
            trackio.context_vars.current_run.set(self._session.live)

    def on_train_end(self, run: Run, control: TrainerControl) -> None:
        super().on_train_end(run, control)
        space = self._session.space if isinstance(self._session, TrackioSession) else None
        self.finish()
        if space is not None and self.static_space_id is not False:
            trackio.freeze(
                space_id=space,
                project=self.project,
                new_space_id=self.static_space_id,
                private=run.args.hub_private_repo,
            )

    def _finish(self, outcome: Outcome) -> None:
        super()._finish(outcome)
        trackio.context_vars.current_run.set(None)
