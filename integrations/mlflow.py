"""MLflow: the settings of the run, the logged values, and why training stopped."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlflow

from ..callbacks.base.tracker import Tracker
from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.control import TrainerControl

AT_ONCE = 100
"""The largest number of settings that MLflow takes in one call."""


@dataclass
class MLflow(Tracker):
    """Reports to one MLflow run. A resumed training, and evaluations after it, report to the same run.

    `report_to="mlflow"` builds it, or list `MLflow(experiment="demo")`. MLflow's settings, such as
    `MLFLOW_TRACKING_URI`, choose the server. If an MLflow run is active already, it reports to that run and leaves it
    active.
    """

    experiment: str | None = None
    """The experiment. It is created if it does not exist. Default: `MLFLOW_EXPERIMENT_NAME`, else MLflow's default."""
    name: str | None = None
    """The name of the run. Default: `args.run_name`, else a generated name."""
    _started: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MLflow:
        return cls(args.project, args.run_name)

    def on_train_end(self, control: TrainerControl) -> None:
        if self._reports:
            mlflow.set_tag("stopped", control.why("training_stop"))

    def on_close(self) -> None:
        self.finish()

    def open(self, run: Run) -> str:
        active = mlflow.active_run()
        if active is None:
            if self.run_id is None and (experiment := self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")):
                mlflow.set_experiment(experiment)
            active = mlflow.start_run(run_id=self.run_id, run_name=self.name or run.args.run_name)
            self._started = True
        opened: str = active.info.run_id
        return opened

    def describe(self, run: Run) -> None:
        # MLflow does not allow changes of a setting, and a resumed run may have other settings.
        settings = list(run.args.to_sanitized_dict().items())
        for first in range(0, len(settings), AT_ONCE):
            mlflow.log_params(dict(settings[first : first + AT_ONCE]))

    def report(self, logs: Mapping[str, Any], step: int) -> None:
        mlflow.log_metrics(
            {_valid_name(key): value for key, value in logs.items() if isinstance(value, (int, float))}, step=step
        )

    def leave(self, failed: bool) -> None:
        started, self._started = self._started, False
        if started:
            mlflow.end_run("FAILED" if failed else "FINISHED")


def _valid_name(key: str) -> str:
    """Return the name of a metric. Characters that MLflow does not allow become `_`."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)
