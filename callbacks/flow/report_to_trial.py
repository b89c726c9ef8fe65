"""Report the evaluations of a run to a hyperparameter search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...engine.run import Run
from ...engine.search.hyperparameters import default_compute_objective
from ...events.callback import Callback
from ...events.stages import Stage


def _report_nothing(objective: Any, step: int, metrics: dict[str, Any]) -> None:
    """Do nothing. This function is the default of `ReportToTrial.report`."""


@dataclass
class ReportToTrial(Callback):
    """Reports the objective of a trial to a hyperparameter search, after each evaluation.

    The search can then prune the trial. An evaluation is reported only if it covers all eval
    datasets of the trainer. So the evaluations of an additional `Evaluate(dataset=...)` are not reported. With the
    argument `eval_rows`, the evaluation of all rows at the end of the training is not reported.

    `Trainer.hyperparameter_search` attaches this callback. If you run the search in your own code, attach the callback
    yourself: `ReportToTrial(report=lambda objective, step, metrics: trial.report(objective, step))`.
    """

    stage = Stage.REPORT
    report: Callable[[Any, int, dict[str, Any]], None] = field(default=_report_nothing, repr=False)
    """The function that receives the objective, the step and the metrics. The default does nothing. If the function
    raises an exception, the run ends."""
    compute_objective: Callable[[dict[str, Any]], Any] = field(default=default_compute_objective, repr=False)
    """The function that computes the objective from the metrics of an evaluation. With several objectives, the function
    returns one number per objective."""
    name: str | None = None
    """The name of the trial. The callback stores it in `TrainerState.trial_name`."""
    params: dict[str, Any] = field(default_factory=dict)
    """The hyperparameters of the trial. The callback stores them in `TrainerState.trial_params`."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    objective: Any = field(default=None, init=False, repr=False, compare=False)
    """The objective that the callback reported last. None before the first report."""

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            state, self.objective = run.state, None
            state.is_hyper_param_search, state.trial_name, state.trial_params = True, self.name, self.params

    def on_evaluate_end(self, run: Run, metrics: dict[str, Any]) -> None:
        if run.mode == "train" and run.evaluates_all and run.evaluation_decides:
            self.objective = self.compute_objective(dict(metrics))
            self.report(self.objective, run.state.global_step, metrics)
