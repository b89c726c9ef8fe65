"""Report a run's evaluations to the trial of a hyperparameter search that it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...engine.run import Run
from ...engine.search.hyperparameters import default_compute_objective
from ...events.callback import Callback
from ...events.stages import Stage


def _keep_silent(objective: Any, step: int, metrics: dict[str, Any]) -> None:
    """Report to nobody."""


@dataclass
class ReportToTrial(Callback):
    """Reports the objective after each evaluation of a run that is a trial of a search; the search may end it there.

    `Trainer.hyperparameter_search` attaches one. In a search of one's own, `report` is what its library offers.
    """

    stage = Stage.REPORT
    report: Callable[[Any, int, dict[str, Any]], None] = field(default=_keep_silent, repr=False)
    """Called with the objective, the step and the metrics; what it raises ends the run."""
    compute_objective: Callable[[dict[str, Any]], Any] = field(default=default_compute_objective, repr=False)
    """The objective from the metrics of an evaluation: a number, or several where the search has several."""
    name: str | None = None
    """The name of the trial."""
    params: dict[str, Any] = field(default_factory=dict)
    """The hyperparameters of the trial, for the state of the run."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    objective: Any = field(default=None, init=False, repr=False, compare=False)
    """The last that was reported; None before the first."""

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            state, self.objective = run.state, None
            state.is_hyper_param_search, state.trial_name, state.trial_params = True, self.name, self.params

    def on_evaluate_end(self, run: Run, metrics: dict[str, Any]) -> None:
        if run.mode == "train" and run.evaluates_all:
            self.objective = self.compute_objective(dict(metrics))
            self.report(self.objective, run.state.global_step, metrics)
