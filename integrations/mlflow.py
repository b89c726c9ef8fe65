"""MLflow: the run's settings, everything that is logged, and why it ended."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

import mlflow

from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.callback import Callback
from ..events.control import TrainerControl
from ..events.stages import Stage
from ..events.state import TrainerState

AT_ONCE = 100
"""How many settings MLflow takes at once."""


@dataclass
class MLflow(Callback):
    """Reports to one MLflow run, which stays the same when training is resumed and when evaluations follow it.

    Where it reports to is MLflow's own affair (`MLFLOW_TRACKING_URI`). A run that is active already is reported to,
    and left active.
    """

    stage = Stage.REPORT
    experiment: str | None = None
    """The experiment, made if there is none of this name; by default `MLFLOW_EXPERIMENT_NAME`, or MLflow's own."""
    name: str | None = None
    """The run's name; by default `args.run_name`, or one that MLflow makes up."""
    on_error: str = "warn"
    """What its failures do: a tracker that is down does not stop the training."""
    run_id: str | None = field(default=None, init=False)
    """The id of the MLflow run."""
    _reports: bool = field(default=False, init=False, repr=False, compare=False)
    _began: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MLflow:
        return cls(args.project, args.run_name)

    def on_init_end(self) -> None:
        self.run_id = None  # a new trainer, as each trial of a search has, reports to a run of its own

    def on_train_begin(self, run: Run) -> None:
        self._begin(run)

    def on_log(self, run: Run, state: TrainerState, logs: dict[str, Any]) -> None:
        self._begin(run)
        if self._reports:
            numbers = {_permitted(key): value for key, value in logs.items() if isinstance(value, (int, float))}
            mlflow.log_metrics(numbers, step=state.global_step)

    def on_train_end(self, control: TrainerControl) -> None:
        if self._reports:
            mlflow.set_tag("stopped", control.why("training_stop"))

    def on_exception(self) -> None:
        self._finish("FAILED")

    def on_close(self) -> None:
        self._finish("FINISHED")

    def on_end(self) -> None:
        self._finish("FINISHED")  # of what was logged between the sessions

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_id = state["run_id"]

    def _begin(self, run: Run) -> None:
        if self._reports or not run.state.is_world_process_zero:
            return
        known = self.run_id
        active = mlflow.active_run()
        if active is None:
            if known is None and (experiment := self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")):
                mlflow.set_experiment(experiment)
            active = mlflow.start_run(run_id=known, run_name=self.name or run.args.run_name)
            self._began = True
        self.run_id, self._reports = active.info.run_id, True
        if self.run_id != known:  # a setting of a run cannot be changed, and a resumed one may have others
            settings = list(run.args.to_sanitized_dict().items())
            for first in range(0, len(settings), AT_ONCE):
                mlflow.log_params(dict(settings[first : first + AT_ONCE]))

    def _finish(self, status: str) -> None:
        began, self._reports, self._began = self._began, False, False
        if began:
            mlflow.end_run(status)


def _permitted(key: str) -> str:
    """Return a metric's name with what MLflow does not allow in one replaced by `_`."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)
