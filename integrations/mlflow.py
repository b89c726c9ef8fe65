"""The MLflow tracker: records settings, logged values, and the reason why training stopped."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import mlflow
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient, fluent

from ..callbacks.base.row_tracker import Opening, Outcome, RowTracker, TrackerSession
from ..callbacks.base.service_tracker import numbers_of
from ..callbacks.base.tracker_rows import AXIS
from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.control import TrainerControl
from ..events.stages import Stage, order

AT_ONCE = 100
"""The largest number of settings that MLflow takes in one call."""
LONGEST = 6000
"""The largest length of a setting in characters."""


class MLflowSession(TrackerSession):
    """An open run of MLflow."""

    def __init__(self, live: Any, owned: bool, resumed: bool) -> None:
        self.client, self.run_id, self.live, self.owned = MlflowClient(), live.info.run_id, live, owned
        if resumed:
            history = self.client.get_metric_history(self.run_id, "epoch")
            self.last_step = max((metric.step for metric in history), default=-1)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write settings (name -> value) as parameters of a new MLflow run."""
        # MLflow does not allow changes of a setting, and a resumed run may have other settings.
        params = [Param(name, str(value)[:LONGEST]) for name, value in settings.items()]
        for first in range(0, len(params), AT_ONCE):
            self.client.log_batch(self.run_id, params=params[first : first + AT_ONCE])

    def write(self, row: dict[str, Any], step: int) -> None:
        logged, numbers = int(self.logged_at * 1000), numbers_of(row, skipped=self.leave_out)
        values = {_name(column): value for column, value in numbers if column != AXIS}
        self.client.log_batch(self.run_id, [Metric(name, float(value), logged, step) for name, value in values.items()])

    def summarize(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.client.log_metric(self.run_id, name, float(value))
            else:
                self.client.set_tag(self.run_id, name, value)

    def finish(self, outcome: Outcome) -> None:
        if self.owned:
            stopped = outcome.exit_code and not outcome.error
            status = "KILLED" if stopped else "FAILED" if outcome.exit_code else "FINISHED"
            self.client.set_terminated(self.run_id, status)


@dataclass
class MLflow(RowTracker):
    """Reports to one MLflow run. A resumed training, and its later evaluations, report to the same run.

    Set `report_to="mlflow"`, or add `MLflow(experiment="demo")` to the callbacks. MLflow's settings, such as
    `MLFLOW_TRACKING_URI`, choose the server. Metrics have the same names as with transformers, such as `loss` and
    `eval_loss`. During training, the MLflow run of the callback is the active run of MLflow. If your program already
    started an MLflow run, the callback reports to this run and does not end this run.
    """

    service: ClassVar[str] = "MLflow"

    experiment: str | None = None
    """The experiment. MLflow creates a missing experiment. Default: `MLFLOW_EXPERIMENT_NAME`, else the default of
    MLflow. With `report_to="mlflow"`, the experiment is `args.project`, if this argument is set."""
    name: str | None = None
    """The name of the MLflow run. Default: `args.run_name`, else a generated name."""
    _active: Any = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MLflow:
        return cls(args.project, args.run_name)

    def new_id(self, run: Run) -> str:
        return ""  # the service makes it

    def connect(self, run: Run, opening: Opening) -> Callable[[], TrackerSession]:
        active, settings, name = mlflow.active_run(), run.args.to_sanitized_dict(), self.name or run.args.run_name
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")

        opened: list[Any] = []

        def open_session() -> TrackerSession:
            if active is not None:
                session = MLflowSession(active, owned=False, resumed=opening.resumes > 0)
            else:
                if not opening.run_id and experiment:
                    mlflow.set_experiment(experiment)
                if not opened:  # a later attempt uses the run of an earlier one
                    opened.append(mlflow.start_run(run_id=opening.run_id or None, run_name=name))
                    fluent._active_run_stack.get().clear()  # the run is active in the thread of the training
                session = MLflowSession(opened[0], owned=True, resumed=opening.resumes > 0)
            if session.run_id != opening.run_id:
                session.describe(settings)
            return session

        return open_session

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        session = self._session
        if isinstance(session, MLflowSession) and session.owned and mlflow.active_run() is None:
            self._active = session.live
            fluent._active_run_stack.get().append(session.live)

    def on_train_end(self, run: Run, control: TrainerControl) -> None:
        super().on_train_end(run, control)
        self.finish()

    def _finish(self, outcome: Outcome) -> None:
        super()._finish(outcome)
        active, self._active = self._active, None
        stack = fluent._active_run_stack.get()
        if active is not None and active in stack:
            stack.remove(active)


def _name(column: str) -> str:
    """Return the MLflow name of a column: `loss` for `train/loss`, and `eval_loss` for `eval/loss`.

    transformers uses the same names. Each character that MLflow does not allow becomes `_`. The function removes empty
    parts between slashes, and the parts `.` and `..`: `a//../b` becomes `a/b`.
    """
    section, _, rest = column.partition("/")
    key = rest if section == "train" else f"{section}_{rest}" if section in ("eval", "test") else column
    parts = re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII).split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "_"
