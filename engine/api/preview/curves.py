"""The assumed values of metrics in a preview, as functions of step and evaluation number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ....events.errors import ArgumentError

Given = Mapping[str, Sequence[float] | Callable[[int], float]]
"""Name of a metric -> a list with one value for each evaluation, or a function that returns the value at a step."""


def from_function(values: Callable[[int], float]) -> Callable[[int, int], float]:
    """Return a curve that computes the value of a metric from the step. The curve ignores the evaluation number."""
    return lambda step, number: values(step)


def from_list(name: str, values: Sequence[float], notes: list[str]) -> Callable[[int, int], float]:
    """Return a curve with one value for each evaluation. If the run evaluates more often, the last value repeats.

    A curve is a function that receives the step and the number of the evaluation, from 0.

    Args:
        name: the name of the metric.
        values: the values.
        notes: the list to which the curve adds a text when it first repeats the last value.

    Raises:
        ArgumentError: if `values` is empty.
    """
    if not len(values):
        raise ArgumentError(f"preview(metrics={{{name!r}: []}}) has no value. Pass one for each evaluation.")

    def value(step: int, number: int) -> float:
        if number == len(values):
            notes.append(
                f"{name}: {len(values)} values are given, but the run evaluates more often. The last value repeats."
            )
        return values[min(number, len(values) - 1)]

    return value


def improving(greater: bool) -> Callable[[int, int], float]:
    """Return the default curve, in which each evaluation is better than the previous evaluation.

    A curve is a function that receives the step and the number of the evaluation, from 0.

    Args:
        greater: whether a greater value of the metric is better.
    """

    def value(step: int, number: int) -> float:
        return float(number + 1) if greater else 1.0 / (number + 1)

    value.assumed = True  # type: ignore[attr-defined]
    return value
