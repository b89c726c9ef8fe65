"""optuna: hyperparameter search with its samplers and pruners."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import optuna

from ..callbacks.flow.report_to_trial import ReportToTrial
from ..engine.search.hyperparameters import BestRun, Search, takes_trial
from ..events.bus import note
from ..events.errors import ArgumentError, TrainbusError, nearest

OPTIMIZE = ("timeout", "n_jobs", "catch", "callbacks", "gc_after_trial", "show_progress_bar")
"""The options that are for `Study.optimize`; all others are for `optuna.create_study`."""


@dataclass
class OptunaSearch:
    """Has optuna choose the values of each trial, and end those early that its pruner gives up.

    On several processes the first one asks optuna, and tells the others.
    """

    def default_space(self, trial: Any) -> dict[str, Any]:
        """Return values of the learning rate, the epochs, the seed and the batch size."""
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
            "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
            "seed": trial.suggest_int("seed", 1, 40),
            "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
        }

    def search(self, search: Search) -> BestRun | list[BestRun]:
        """Run the study; return its best trial, or for several objectives all that no other beats."""
        options = _checked(search.options)
        optimize = {name: options.pop(name) for name in OPTIMIZE if name in options}
        if search.ranks.rank != 0:
            return _follow(search)
        several = search.several
        options["directions" if several else "direction"] = search.direction
        study = optuna.create_study(**options)
        try:
            study.optimize(lambda trial: _objective(search, trial), n_trials=search.n_trials, **optimize)
            best = _best(study, several)
        except BaseException as error:
            _tell(search, error=f"{type(error).__name__}: {error}")
            raise
        runs = best if isinstance(best, list) else [best]
        told = [run._replace(run_summary=None) for run in runs]
        _tell(search, best=told if several else told[0])
        return best


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    known = [*OPTIMIZE, *(set(inspect.signature(optuna.create_study).parameters) - {"direction", "directions"})]
    for name in options:
        if name not in known:
            raise ArgumentError(f"optuna takes no option {name!r}{nearest(name, known)} It takes: {', '.join(known)}.")
    return dict(options)


def _objective(search: Search, trial: Any) -> Any:
    try:
        values = search.space(trial)
        if not search.ranks.single_process and takes_trial(search.model_init):
            search.new_model(trial)  # what it asks of the trial is then known, and told with the rest
        name = search.name_of(trial, trial.number)
        _tell(search, number=trial.number, params=trial.params, values=values, name=name)
        return _train(search, trial, name, values)
    except optuna.TrialPruned:
        raise
    except Exception as error:
        note(error, f"This was trial {trial.number} of the search, with {trial.params}.")
        raise


def _train(search: Search, trial: Any, name: str, values: dict[str, Any]) -> Any:
    def report(objective: Any, step: int, metrics: dict[str, Any]) -> None:
        if search.several:
            return  # optuna prunes by one objective only
        trial.report(objective, step)
        if _said_by_first(search, trial.should_prune()):
            raise optuna.TrialPruned(f"{name} was given up at step {step}, with {objective:.6g}.")

    return search.objective_of(
        trial, name, values, ReportToTrial(report, search.compute_objective, name, dict(trial.params))
    )


def _best(study: Any, several: bool) -> BestRun | list[BestRun]:
    done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if not done:
        ends = ", ".join(f"{trial.number}: {trial.state.name.lower()}" for trial in study.trials) or "none was begun"
        raise TrainbusError(f"No trial of the search was completed, so there is no best one ({ends}).")
    if several:
        return [BestRun(str(best.number), best.values, best.params, study) for best in study.best_trials]
    best = study.best_trial
    return BestRun(str(best.number), best.value, best.params, study)


# Several processes: the first one leads.


def _said_by_first(search: Search, value: Any = None) -> Any:
    return search.ranks.gather_objects(value)[0]


def _tell(search: Search, **message: Any) -> None:
    if not search.ranks.single_process:
        _said_by_first(search, message)


def _follow(search: Search) -> BestRun | list[BestRun]:
    """Train what the first process is told to, until it says what was best, or that it failed."""
    failure: Exception | None = None
    while "number" in (message := _said_by_first(search)):
        trial = optuna.trial.FixedTrial(message["params"], message["number"])
        try:
            _train(search, trial, message["name"], message["values"])
        except Exception as error:
            failure = error  # the first process met it too, and says whether the search goes on
    if "error" in message:
        raise TrainbusError(f"The search failed on the first process: {message['error']}") from failure
    best: BestRun | list[BestRun] = message["best"]
    return best
