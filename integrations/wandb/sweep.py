"""Hyperparameter search as a sweep of Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import wandb

from ...callbacks.flow.report_to_trial import ReportToTrial
from ...engine.search.hyperparameters import BestRun, Search
from ...engine.search.objective import NOT_A_NUMBER, best_of
from ...events.errors import ArgumentError, TrainbusError, nearest, note
from ...events.stages import Stage
from ...events.state import TrainerState

OBJECTIVE = "objective"
"""The column with the result of `compute_objective`, in the wandb run of each trial."""
OPTIONS = ("sweep_id", "project", "entity", "name", "metric")


@dataclass
class WandbSweep:
    """The search backend `wandb`: a sweep chooses the values of each trial, and has one wandb run per trial."""

    def default_space(self, trial: Any) -> dict[str, Any]:
        """Return the configuration of a sweep over learning rate, epochs, seed and batch size. `trial` is not used."""
        return {
            "method": "random",
            "metric": {"name": "objective", "goal": "minimize"},
            "parameters": {
                "learning_rate": {"distribution": "uniform", "min": 1e-6, "max": 1e-4},
                "num_train_epochs": {"distribution": "int_uniform", "min": 1, "max": 6},
                "seed": {"distribution": "int_uniform", "min": 1, "max": 40},
                "per_device_train_batch_size": {"values": [4, 8, 16, 32, 64]},
            },
        }

    def search(self, search: Search) -> BestRun:
        """Start a sweep, or join the sweep in the option `sweep_id`. Return the best trial that this process trained.

        Raises:
            ArgumentError: for an unknown option.
            TrainbusError: if the sweep cannot start, if no trial completed, or if the objective of each trial is NaN.
        """
        direction = search.single_direction("wandb")
        for option in search.options:
            if option not in OPTIONS:
                raise ArgumentError(
                    f"wandb has no option {option!r}{nearest(option, OPTIONS)} Its options: {', '.join(OPTIONS)}."
                )
        options = dict(search.options)
        location = {key: options[key] for key in ("project", "entity") if key in options}
        sweep_id = options.get("sweep_id")
        if sweep_id is None:
            space = dict(search.space(None))
            space["metric"] = _metric(space.get("metric"), options.get("metric"), direction)
            if "name" in options:
                space["name"] = options["name"]
            try:
                sweep_id = wandb.sweep(space, **location)
            except wandb.errors.Error as error:
                mode = os.environ.get("WANDB_MODE")
                raise TrainbusError(
                    f"The sweep cannot start: {error} A sweep of wandb needs the service, and a key from `wandb login`"
                    f"{f', also with WANDB_MODE={mode}' if mode else ''}. Without a network, use backend='optuna'."
                ) from error
        trials = _Trials(search)
        wandb.agent(sweep_id, function=trials.run, count=search.n_trials, **location)
        return trials.best(direction, sweep_id)


@dataclass
class _Trials:
    """The trials of a sweep in this process. The agent of the sweep calls `run` once for each trial."""

    search: Search
    done: list[BestRun] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)

    def run(self) -> None:
        """Train one trial with the values that the sweep chooses."""
        search = self.search
        with wandb.init() as session:
            config = dict(session.config)
            name = search.name_of(config, session.id)

            def report(objective: Any, step: int, metrics: dict[str, Any]) -> None:
                session.log({OBJECTIVE: objective, "step": step})

            def log(state: TrainerState, logs: dict[str, Any]) -> None:
                session.log({**{_in_sections(key): value for key, value in logs.items()}, "step": state.global_step})

            reporter = ReportToTrial(report, search.compute_objective, name, config)
            filters = {"stage": Stage.REPORT, "on_error": "warn"}
            reporting = replace(search, functions={**search.functions, "sweep": ("on_log", log, filters)})
            # The sweep already has a run for the trial. The wandb tracker of `report_to` would start another one.
            others = [tracker for tracker in search.args.trackers if tracker != "wandb"]
            try:
                objective = reporting.objective_of(config, name, {"report_to": others, **config}, reporter)
            except Exception as error:
                note(error, f"This is trial {session.id} of the search, with {config}.")
                self.failed.append(error)
                raise  # wandb marks the trial as failed, and the agent continues
            session.summary[OBJECTIVE] = objective
            self.done.append(BestRun(session.id, objective, config))

    def best(self, direction: str, sweep_id: str) -> BestRun:
        """Return the best completed trial. A trial with the objective NaN is never the best.

        Args:
            direction: `minimize` if a smaller objective is better, else `maximize`.
            sweep_id: the id of the sweep, for the field `run_summary` of the result.

        Raises:
            TrainbusError: if no trial completed, or if the objective of each trial is NaN.
        """
        if not self.done:
            message = "The search has no best trial, because no trial completed. Read the errors of the trials above."
            raise TrainbusError(message) from (self.failed[0] if self.failed else None)
        best = best_of(self.done, direction)
        if best is None:
            raise TrainbusError(NOT_A_NUMBER)
        return best._replace(run_summary=sweep_id)


def _metric(given: Any, name: str | None, direction: str) -> dict[str, Any]:
    """Return the entry `metric` of the configuration of a sweep. Its goal is always `direction`.

    Args:
        given: the entry `metric` of the user's space; None if the space has no such entry.
        name: the option `metric` of the search. None: `given["name"]`, or the objective if `given` has no name.
        direction: the direction of the search.

    Raises:
        ArgumentError: if `given` is not a dict, or if its goal is `maximize` and `direction` is `minimize`.
    """
    entry = {} if given is None else given
    example = {"name": "eval/accuracy", "goal": direction}
    if not isinstance(entry, Mapping):
        raise ArgumentError(f"The `metric` of the space is {given!r}, which is not a dict. Write {example}.")
    if entry.get("goal") == "maximize" and direction == "minimize":
        raise ArgumentError(
            "The space has the goal 'maximize', but `direction` is 'minimize'. Pass direction='maximize' to "
            "`hyperparameter_search`, or remove the goal from the space."
        )
    return {**entry, "name": name or entry.get("name") or OBJECTIVE, "goal": direction}


def _in_sections(key: str) -> str:
    """Return the column of a logged value: `eval/loss` for `eval_loss`, and `train/loss` for `loss`."""
    return key.replace("_", "/", 1) if key.startswith(("eval_", "test_")) else f"train/{key}"
