"""The functions that a user passes to a hyperparameter search, with checks of what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...events.errors import ArgumentError, nearest


def check_function(name: str, function: Any, takes: str, example: str) -> None:
    """Check that an argument of a search is None, or a function that can be called with one value.

    Args:
        name: the name of the argument.
        function: the value of the argument.
        takes: what the function receives, such as `the trial`.
        example: a correct value, for the error.

    Raises:
        ArgumentError: if the value is not such a function.
    """
    if function is None:
        return
    if not callable(function):
        kind = type(function).__name__
        raise ArgumentError(
            f"`{name}` is a {kind}, which is not callable. Pass a function of {takes}, such as {example}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ArgumentError(
            f"`{name}` has the parameters {signature}, but it receives one value: {takes}. Pass a function such as "
            f"{example}."
        ) from None


@dataclass
class CheckedSpace:
    """The function `hp_space` of a search. It returns the values of a trial; with ray and wandb, the search space."""

    function: Callable[[Any], dict[str, Any]]
    """The function of the user or of the library."""

    def __call__(self, trial: Any) -> dict[str, Any]:
        """Call the function.

        Raises:
            ArgumentError: if the function does not return a dict.
        """
        values: Any = self.function(trial)
        if isinstance(values, Mapping):
            return dict(values)
        raise ArgumentError(
            f"`hp_space` returned {values!r}, which is not a dict. Return the hyperparameters by the name of the "
            "argument, such as {'learning_rate': trial.suggest_float('learning_rate', 1e-6, 1e-4)}."
        )


@dataclass
class CheckedObjective:
    """The function that computes the objective of a trial from the metrics of an evaluation."""

    function: Callable[[dict[str, Any]], Any]
    """The function of the user, or the default."""
    direction: str | list[str]
    """`minimize` or `maximize`, or a list of these for several objectives."""

    def __call__(self, metrics: dict[str, Any]) -> Any:
        """Call the function.

        Raises:
            ArgumentError: if the function reads a metric that the evaluation does not have. Also if it does not return
                one number per direction.
        """
        try:
            objective = self.function(metrics)
        except KeyError as error:
            missing = error.args[0] if error.args else None
            if not isinstance(missing, str) or missing in metrics:
                raise
            hint = nearest(missing, metrics)
            raise ArgumentError(
                f"`compute_objective` reads the metric {missing!r}, which the evaluation does not have{hint} "
                f"{_listed(metrics)} Correct the name, or return the metric in `compute_metrics`."
            ) from error
        self._check(objective, metrics)
        return objective

    def _check(self, objective: Any, metrics: dict[str, Any]) -> None:
        wanted = "one number"
        if isinstance(self.direction, list):
            count = len(self.direction)
            wanted = f"a list of {count} numbers, one for each direction"
            fits = isinstance(objective, (list, tuple)) and len(objective) == count and all(map(_is_number, objective))
        else:
            fits = _is_number(objective)
        if not fits:
            raise ArgumentError(f"`compute_objective` returned {objective!r}. Return {wanted}. {_listed(metrics)}")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises a RuntimeError for a tensor of several numbers
        return False
    return True


def _listed(metrics: Mapping[str, Any]) -> str:
    return f"The metrics are: {', '.join(sorted(metrics))}."
