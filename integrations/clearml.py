"""The ClearML tracker: records trainings as ClearML tasks, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from clearml import Task

from ..callbacks.base.row_tracker import Opening, Outcome
from ..callbacks.base.service_tracker import ServiceSession, ServiceTracker
from ..engine.run import Run


class ClearMLSession(ServiceSession):
    """An open ClearML task."""

    def __init__(self, live: Any, owned: bool) -> None:
        super().__init__(live.id, owned)
        self.live = live

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            series, _, title = name.partition("/")
            self.live.get_logger().report_scalar(title or name, series, value, step)

    def tell(self, name: str, value: Any) -> None:
        if isinstance(value, (int, float)):
            self.live.get_logger().report_single_value(name, value)
        else:
            self.live.get_logger().report_text(f"{name}: {value}", print_console=False)

    def close(self, outcome: Outcome) -> None:
        if outcome.error:
            self.live.mark_failed(status_reason=outcome.reason)
        elif outcome.exit_code:
            self.live.mark_stopped(status_message=outcome.reason)
        self.live.close()


@dataclass
class ClearML(ServiceTracker):
    """Reports to one ClearML task. A resumed training continues the task if the task is online.

    Set `report_to="clearml"`, or add `ClearML("demo", offline=True)` to the callbacks. With `offline=True`, each
    session writes an archive for `clearml-task-import`, and a resumed training is a separate task. If your program
    already opened a task, the callback uses this task, and does not close it.
    """

    service: ClassVar[str] = "ClearML"

    project: str | None = None
    """The project. Default: `trainbus`."""
    name: str | None = None
    """The name of the task. Default: `args.run_name`, or else `trainbus`."""

    offline: bool = field(default=False, kw_only=True)
    """Whether to write files on this machine, and send nothing to the service. The environment variable
    `CLEARML_OFFLINE_MODE=1` has the same effect as True."""

    def new_id(self, run: Run) -> str:
        return ""  # the service makes it

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        if (active := Task.current_task()) is not None:
            return ClearMLSession(active, owned=False)
        if self.offline:
            Task.set_offline(True)
        # By default the client forks a process that sends the reports. The fork keeps the pipes of the thread that
        # looks for a git repository open, so that thread, and with it the end of the task, may wait for ever.
        Task._report_subprocess_enabled = False
        known = opening.run_id if opening.resumes and not opening.run_id.startswith("offline-") else ""
        given: dict[str, Any] = {"project_name": self.project or "trainbus", "task_name": name or "trainbus"}
        given |= {"auto_connect_frameworks": False, "auto_connect_arg_parser": False}
        given |= {"reuse_last_task_id": False, "continue_last_task": known or False, **self.options}
        live = Task.init(**given)
        if not known:
            live.connect(dict(config), name="arguments")
        if known:
            live.set_initial_iteration(0)  # the steps of the rows are those of the whole run
        return ClearMLSession(live, owned=True)
