"""The SwanLab tracker: records trainings as SwanLab runs, in the cloud or on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import swanlab

try:
    from swanlab.data.run.main import SwanLabRunState

    _CRASHED: Any = SwanLabRunState.CRASHED
except (ImportError, AttributeError):  # later versions take a word
    _CRASHED = "crashed"

from ..callbacks.base.row_tracker import Opening, Outcome
from ..callbacks.base.service_tracker import ServiceSession, ServiceTracker


class SwanLabSession(ServiceSession):
    """An open run of SwanLab."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        swanlab.log(dict(values), step=step)

    def tell(self, name: str, value: Any) -> None:
        swanlab.config.update({f"summary/{name}": value})

    def close(self, outcome: Outcome) -> None:
        if outcome.exit_code:
            swanlab.finish(_CRASHED, error=outcome.reason or "stopped")
        else:
            swanlab.finish()


@dataclass
class SwanLab(ServiceTracker):
    """Reports to one SwanLab run. A resumed training reports to the same run.

    If the service no longer has the run, the resumed training creates a new run.

    Set `report_to="swanlab"`, or add `SwanLab("demo", mode="offline")` to the callbacks. In offline mode, each session
    writes a folder, and SwanLab prints the `swanlab sync` command that uploads the folder. If your program already
    opened a run, the callback uses this run and leaves it open.
    """

    service: ClassVar[str] = "SwanLab"

    mode: str | None = field(default=None, kw_only=True)
    """The mode: `cloud`, `local`, `offline` or `disabled`. Default: `SWANLAB_MODE`, else `cloud`."""

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        if _is_running():
            return SwanLabSession(opening.run_id, owned=False)
        given: dict[str, Any] = {"project": self.project, "name": name, "mode": self.mode}
        given |= {"config": dict(config), "id": opening.run_id, "resume": "allow", **self.options}
        swanlab.init(**given)
        return SwanLabSession(opening.run_id)


def _is_running() -> bool:
    try:
        live = swanlab.get_run()
    except RuntimeError:  # later versions raise it if no run is open
        return False
    return live is not None and bool(getattr(live, "running", True))
