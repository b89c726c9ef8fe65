"""Hyperparameter search with optuna, its samplers and its pruners."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optuna

from ..callbacks.flow.report_to_trial import ReportToTrial
from ..engine.search.hyperparameters import BestRun, Search, takes_trial
from ..events.errors import ArgumentError, TrainbusError, closest, nearest, note

OPTIMIZE = ("timeout", "n_jobs", "catch", "callbacks", "gc_after_trial", "show_progress_bar")
"""The options of a search that `Study.optimize` takes. `optuna.create_study` takes all other options."""

OBJECTS: dict[str, tuple[Any, type[Any]]] = {
    "sampler": (optuna.samplers, optuna.samplers.BaseSampler),
    "pruner": (optuna.pruners, optuna.pruners.BasePruner),
}
"""Option -> the module of optuna with the classes of its values, and their base class."""


def _are(values: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(values, (list, tuple, set, frozenset)) and all(map(fits, values))


def _is_error_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_number(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


def _is_storage(value: Any) -> bool:
    return "://" in value if isinstance(value, str) else isinstance(value, optuna.storages.BaseStorage)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


_SWITCH = (_is_switch, "True or False")
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "timeout": (_is_number(int, float), "a number of seconds, such as 3600"),
    "n_jobs": (_is_number(int), "a whole number, such as 2"),
    "storage": (
        _is_storage,
        "the address of a database, such as 'sqlite:///study.db', or a storage object of optuna",
    ),
    "study_name": (lambda value: isinstance(value, str), "a text, such as 'tuning'"),
    "catch": (
        lambda value: _is_error_class(value) or _are(value, _is_error_class),
        "classes of errors, such as (RuntimeError,)",
    ),
    "callbacks": (
        lambda value: _are(value, callable),
        "a list of functions that receive the study and the finished trial",
    ),
    "load_if_exists": _SWITCH,
    "gc_after_trial": _SWITCH,
    "show_progress_bar": _SWITCH,
}
"""Option -> whether a value is right, and what to pass. optuna itself checks few of these options."""


@dataclass
class OptunaSearch:
    """The search backend `optuna`: optuna chooses the values of each trial, and its pruner may stop a trial early.

    With several ranks, rank 0 runs the study and sends each trial to the other ranks.
    """

    def default_space(self, trial: Any) -> dict[str, Any]:
        """Let optuna suggest learning rate, epochs, seed and batch size. Return the values by argument name.

        The ranges are the default ranges of transformers.
        """
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
            "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
            "seed": trial.suggest_int("seed", 1, 40),
            "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
        }

    def search(self, search: Search) -> BestRun | list[BestRun]:
        """Run the study and return its best trial. With several objectives, return the Pareto-optimal trials.

        Raises:
            ArgumentError: if optuna does not know an option of the search.
            TrainbusError: if no trial completed.
        """
        options = _checked(search.options)
        optimize = {name: options.pop(name) for name in OPTIMIZE if name in options}
        if search.ranks.rank != 0:
            return _follow(search)
        several = search.several
        options["directions" if several else "direction"] = search.direction
        try:
            study = optuna.create_study(**options)
            study.optimize(lambda trial: _objective(search, trial), n_trials=search.n_trials, **optimize)
            best = _best(study, several)
        except BaseException as error:
            _send(search, error=f"{type(error).__name__}: {error}")
            raise
        runs = best if isinstance(best, list) else [best]
        without_study = [run._replace(run_summary=None) for run in runs]
        _send(search, best=without_study if several else without_study[0])
        return best


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    known = [*OPTIMIZE, *(set(inspect.signature(optuna.create_study).parameters) - {"direction", "directions"})]
    for name in options:
        if name not in known:
            raise ArgumentError(f"optuna has no option {name!r}{nearest(name, known)} Its options: {', '.join(known)}.")
    for name, (module, base) in OBJECTS.items():
        if (given := options.get(name)) is not None and not isinstance(given, base):
            raise ArgumentError(f"optuna's option `{name}` is {_wrong_object(given, module, base)}")
    for name, (fits, text) in KINDS.items():
        if (given := options.get(name)) is not None and not fits(given):
            raise ArgumentError(f"optuna's option `{name}` is {given!r}. Pass {text}.")
    return dict(options)


def _wrong_object(given: Any, module: Any, base: type[Any]) -> str:
    """Return the end of an error about a value that is not a sampler or pruner of optuna. It names a valid object."""
    suffix = base.__name__.removeprefix("Base")
    kinds = [name for name in module.__all__ if name.endswith(suffix) and name != base.__name__]
    wanted = given.__name__ if isinstance(given, type) else str(given)
    by_word = {kind.removesuffix(suffix).lower(): kind for kind in kinds} | {kind.lower(): kind for kind in kinds}
    meant = by_word.get(closest(wanted.lower(), by_word))
    what = f"the class {wanted}" if isinstance(given, type) else repr(given)
    example = f"{module.__name__}.{meant or kinds[0]}(...)"
    return f"{what}, not an object with the base class {base.__name__}. Pass an object, such as {example}."


def _objective(search: Search, trial: Any) -> Any:
    try:
        values = search.space(trial)
        if not search.ranks.single_process and takes_trial(search.model_init):
            search.new_model(trial)  # its values are then in `trial.params`, which the other ranks receive
        name = search.name_of(trial, trial.number)
        _send(search, number=trial.number, params=trial.params, values=values, name=name)
        return _train(search, trial, name, values)
    except optuna.TrialPruned:
        raise
    except Exception as error:
        note(error, f"This is trial {trial.number} of the search, with {trial.params}.")
        raise


def _train(search: Search, trial: Any, name: str, values: dict[str, Any]) -> Any:
    def report(objective: Any, step: int, metrics: dict[str, Any]) -> None:
        if search.several:
            return  # optuna prunes only studies with one objective
        trial.report(objective, step)
        if _from_rank_0(search, trial.should_prune()):
            raise optuna.TrialPruned(f"optuna pruned {name} at step {step}, with the objective {objective:.6g}.")

    return search.objective_of(
        trial, name, values, ReportToTrial(report, search.compute_objective, name, dict(trial.params))
    )


def _best(study: Any, several: bool) -> BestRun | list[BestRun]:
    done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if not done:
        ends = ", ".join(f"{trial.number}: {trial.state.name.lower()}" for trial in study.trials) or "no trial started"
        raise TrainbusError(
            f"The search has no best trial, because no trial completed ({ends}). Correct the errors of the "
            "trials, or use a more patient pruner. optuna also fails a trial with the objective NaN."
        )
    if several:
        return [BestRun(str(best.number), best.values, best.params, study) for best in study.best_trials]
    best = study.best_trial
    return BestRun(str(best.number), best.value, best.params, study)


# With several ranks, rank 0 leads the search.


def _from_rank_0(search: Search, value: Any = None) -> Any:
    return search.ranks.gather_objects(value)[0]


def _send(search: Search, **message: Any) -> None:
    if not search.ranks.single_process:
        _from_rank_0(search, message)


def _follow(search: Search) -> BestRun | list[BestRun]:
    """On a rank other than 0, train the trials that rank 0 sends. Return the result of the search, which rank 0 sends.

    Raises:
        TrainbusError: if rank 0 sends an error instead.
    """
    failure: Exception | None = None
    while "number" in (message := _from_rank_0(search)):
        trial = optuna.trial.FixedTrial(message["params"], message["number"])
        try:
            _train(search, trial, message["name"], message["values"])
        except Exception as error:
            failure = error  # rank 0 has the same error and decides whether the search continues
    if "error" in message:
        raise TrainbusError(f"The search failed on rank 0: {message['error']}") from failure
    best: BestRun | list[BestRun] = message["best"]
    return best
