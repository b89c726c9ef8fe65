"""The Neptune tracker: records trainings as Neptune runs, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import neptune

from ..callbacks.base.row_tracker import Opening, Outcome
from ..callbacks.base.service_tracker import ServiceSession, ServiceTracker


class NeptuneSession(ServiceSession):
    """An open run of Neptune."""

    def __init__(self, live: Any, run_id: str) -> None:
        super().__init__(run_id)
        self.live = live

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            if value - value == 0:
                self.live[name].append(value, step=step)
            else:
                self.leave_out(name, value, "Neptune refuses numbers that are not finite")

    def tell(self, name: str, value: Any) -> None:
        self.live[f"summary/{name}"] = value

    def close(self, outcome: Outcome) -> None:
        if outcome.exit_code:
            self.live["sys/failed"] = True
        self.live.stop()


@dataclass
class Neptune(ServiceTracker):
    """Reports to one Neptune run. A resumed training reports to the same run.

    Set `report_to="neptune"`, or add `Neptune("team/demo", mode="offline")` to the callbacks. In offline mode, each
    session writes to the folder `.neptune`, and `neptune sync` uploads this folder. The callback leaves out numbers
    that are not finite, because Neptune refuses such numbers. It warns once per name.
    """

    service: ClassVar[str] = "Neptune"

    mode: Literal["async", "sync", "offline", "debug"] | None = field(default=None, kw_only=True)
    """How to upload: `async`, `sync`, `offline` or `debug`. Default: `NEPTUNE_MODE`, else `async`."""

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        given: dict[str, Any] = {"project": self.project, "name": name, "mode": self.mode}
        given |= {"custom_run_id": opening.run_id, "capture_hardware_metrics": False, **self.options}
        live = neptune.init_run(**given)
        if not opening.resumes:
            live["arguments"] = neptune.utils.stringify_unsupported(dict(config))
        return NeptuneSession(live, opening.run_id)
