"""MLflow: the run's settings, everything that is logged, and why it ended."""

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
"""How many settings MLflow takes at once."""


@dataclass
class MLflow(Tracker):
    """Reports to one MLflow run, which stays the same when training is resumed and when evaluations follow it.

    Where it reports to is MLflow's own affair (`MLFLOW_TRACKING_URI`). A run that is active already is reported to,
    and left active.
    """

    experiment: str | None = None
    """The experiment, made if there is none of this name; by default `MLFLOW_EXPERIMENT_NAME`, or MLflow's own."""
    name: str | None = None
    """The run's name; by default `args.run_name`, or one that MLflow makes up."""
    _began: bool = field(default=False, init=False, repr=False, compare=False)

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
            self._began = True
        opened: str = active.info.run_id
        return opened

    def describe(self, run: Run) -> None:
        # Of a new run only: a setting cannot be changed, and a resumed run may have others.
        settings = list(run.args.to_sanitized_dict().items())
        for first in range(0, len(settings), AT_ONCE):
            mlflow.log_params(dict(settings[first : first + AT_ONCE]))

    def report(self, logs: Mapping[str, Any], step: int) -> None:
        mlflow.log_metrics(
            {_permitted(key): value for key, value in logs.items() if isinstance(value, (int, float))}, step=step
        )

    def leave(self, failed: bool) -> None:
        began, self._began = self._began, False
        if began:
            mlflow.end_run("FAILED" if failed else "FINISHED")


def _permitted(key: str) -> str:
    """Return a metric's name with what MLflow does not allow in one replaced by `_`."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)
