"""Hyperparameter search with Ray Tune, which runs several trials at a time."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import ray.tune

from ..callbacks.flow.report_to_trial import ReportToTrial
from ..engine.search.hyperparameters import BestRun, Search
from ..events.errors import TrainbusError, note


@dataclass
class RaySearch:
    """The search backend `ray`: Ray Tune chooses the values of each trial, and trains each trial in its own process.

    Ray sends the inputs of the trainer to these processes, so the inputs must be picklable. A trial reports its
    objective several times. The environment variable `RAY_SCOPE` selects the report that counts: `last` (the default),
    or another scope of Ray's `get_best_trial`.
    """

    def default_space(self, trial: Any) -> dict[str, Any]:
        """Return the distributions of learning rate, epochs, seed and batch size for Ray. `trial` is not used."""
        return {
            "learning_rate": ray.tune.loguniform(1e-6, 1e-4),
            "num_train_epochs": ray.tune.choice(list(range(1, 6))),
            "seed": ray.tune.uniform(1, 40),
            "per_device_train_batch_size": ray.tune.choice([4, 8, 16, 32, 64]),
        }

    def search(self, search: Search) -> BestRun:
        """Run the trials, and return the trial that reported the best result of `search.compute_objective`.

        Raises:
            TrainbusError: if no trial completed with a finite objective.
        """
        direction = search.single_direction("ray")
        args = search.args
        options = {
            "resources_per_trial": {"cpu": 1, "gpu": 1} if args.device.type == "cuda" else {"cpu": 1},
            "progress_reporter": ray.tune.CLIReporter(metric_columns=["objective"]),
            **search.options,
        }
        # A trial runs in a folder of Ray, so its output folder must be absolute. It creates its model there.
        inputs = replace(search.inputs, model=None)
        sent = replace(search, inputs=inputs, options={}, folder=os.path.abspath(search.folder))
        analysis = ray.tune.run(
            ray.tune.with_parameters(_train, search=sent),
            config=search.space(None),
            num_samples=search.n_trials,
            **options,
        )
        scope = os.environ.get("RAY_SCOPE", "last")
        # By default, Ray also leaves out trials with an infinite objective.
        best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope=scope, filter_nan_and_inf=True)
        objective = None if best is None else best.last_result.get("objective")
        # With any scope, Ray returns a single trial without a look at its objective.
        if objective is None or not math.isfinite(objective):
            raise TrainbusError(
                "The search has no best trial, because no trial completed with a finite objective. Read the errors of "
                "the trials above. If a trial has no error, its objective is NaN or infinite."
            )
        return BestRun(best.trial_id, objective, best.config, analysis)


def _train(config: dict[str, Any], search: Search) -> None:
    def report(objective: Any, step: int, metrics: dict[str, Any]) -> None:
        ray.tune.report({**metrics, "objective": objective})

    number = ray.tune.get_context().get_trial_id()
    name = search.name_of(config, number)
    reporter = ReportToTrial(report, search.compute_objective, name, dict(config))
    there = replace(search, inputs=replace(search.inputs, model=search.new_model()))
    try:
        objective = there.objective_of(config, name, config, reporter)
    except Exception as error:
        note(error, f"This is trial {number} of the search, with {config}.")
        raise
    if reporter.objective is None:
        ray.tune.report({"objective": objective})
