"""The Comet tracker: records each run as one experiment, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import comet_ml

from ..callbacks.base.row_tracker import Opening, Outcome
from ..callbacks.base.service_tracker import ServiceSession, ServiceTracker


class CometSession(ServiceSession):
    """An open Comet experiment."""

    def __init__(self, live: Any, owned: bool) -> None:
        super().__init__(live.get_key(), owned)
        self.live = live

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.live.log_metrics(dict(values), step=step)

    def tell(self, name: str, value: Any) -> None:
        self.live.log_other(name, value)

    def close(self, outcome: Outcome) -> None:
        if outcome.reason:
            self.live.log_other("failure", outcome.reason)
        self.live.end()


@dataclass
class Comet(ServiceTracker):
    """Reports to one Comet experiment. A resumed training reports to the same experiment.

    Set `report_to="comet"`, or add `Comet("demo", online=False)` to the callbacks. With `online=False`, each session
    writes an archive, and Comet prints the command `comet upload` for this archive. If your program already opened an
    experiment, the callback uses this experiment, and does not close it.
    """

    service: ClassVar[str] = "Comet"

    online: bool | None = field(default=None, kw_only=True)
    """Whether to upload to Comet. Default: the value of Comet's setting `COMET_START_ONLINE`, or else True."""

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        active = comet_ml.get_running_experiment()
        if active is not None and not active.ended:  # Comet also returns an experiment that has ended
            return CometSession(active, owned=False)
        settings = comet_ml.ExperimentConfig(name=name, auto_metric_logging=False, log_graph=False, parse_args=False)
        given = {"experiment_key": opening.run_id, "project_name": self.project, "online": self.online}
        given |= {"mode": "get" if opening.resumes else "create", "experiment_config": settings, **self.options}
        live = comet_ml.start(**given)
        if not opening.resumes:
            live.log_parameters(dict(config), nested_support=False)
        return CometSession(live, owned=True)
