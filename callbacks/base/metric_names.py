"""Functions for metric names: add the prefix `eval_`, and raise an error for a missing metric."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from ...engine.evaluation.metric_names import Mode as Mode
from ...engine.evaluation.metric_names import greater_is_better as greater_is_better
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.composition import best_metric_of, provides
from ...events.errors import ArgumentError, nearest

logger = logging.getLogger(__name__)


class DefaultMetric(str):
    """A metric name that is the default of a field.

    If a field has a value of this class, the user did not set the field.
    """


DEFAULT_METRIC = DefaultMetric("eval_loss")
"""The metric of a callback if the user names no metric."""


def full_name(metric: str) -> str:
    """Return the name of a metric with the prefix `eval_`. Do not add a second prefix."""
    return metric if metric.startswith("eval_") else f"eval_{metric}"


def value_of(metric: str, metrics: Mapping[str, Any], run: Run, reader: str) -> float | None:
    """Return the value of a metric in an evaluation, or None.

    The function returns None in two cases:

    - The metric is missing in `metrics`, and another evaluation of the run may measure the metric.
    - Callbacks must ignore the evaluation (`run.evaluation_decides` is False), for example because the evaluation used
      other data under the same metric names.

    Args:
        metric: the full name of the metric.
        metrics: the metrics of one evaluation.
        run: the run with the evaluation.
        reader: the name of the callback that reads the metric, for the error.

    Raises:
        ArgumentError: if the metric is missing and no other evaluation may measure it, or if the value is not a
            number.
    """
    if not run.evaluation_decides:
        return None
    if metric in metrics:
        return _number(metric, metrics[metric], reader)
    if not run.evaluates_all or _is_of_variant(metric, run):
        return None
    if metric in run.metrics_at(run.state.global_step):
        return None  # an evaluation that a handler runs measures it
    if all(name == "epoch" or name.endswith(("_runtime", "_per_second")) for name in metrics):
        raise ArgumentError(
            f"{reader} reads the metric {metric!r}, but the evaluation got no batch or no loss, so it "
            "measured nothing. The warning of this evaluation says why, and how to fix it."
        )
    raise ArgumentError(
        f"{reader} reads the metric {metric!r}, but the evaluation did not measure it{nearest(metric, metrics)} "
        f"It measured: {', '.join(metrics)}."
    )


def _is_of_variant(metric: str, run: Run) -> bool:
    """Return whether a metric name starts with `eval_<variant>_`, with the `variant` of an attached callback."""
    variants = (callback.variant for callback in run.bus.subscribers.values() if isinstance(callback, Callback))
    return any(variant and metric.startswith(f"eval_{variant}_") for variant in variants)


def warn_of_best_metric(metric: str, run: Run, reader: str) -> None:
    """Warn if a callback reads its default metric, but another metric chooses the best model of the run.

    Args:
        metric: the full name of the metric that the callback reads.
        run: the run.
        reader: the name of the class of the callback.
    """
    best = best_metric_of(run.bus.subscribers.values())
    if best is not None and best.name != metric and run.state.is_world_process_zero:
        logger.warning(
            "%s reads the metric %r by default, but %r chooses the best model. Write %s(%r) to read the same metric, "
            "or %s(%r) to keep the default without this warning.",
            *(reader, metric, best.name, reader, best.name, reader, metric),
        )


def check_measured(metric: str, run: Run, reader: str) -> None:
    """Check before the first step that an evaluation will measure a metric. The check evaluates one batch.

    The function checks nothing if the run is resumed, if the run plans no evaluations, or if `may_be_added` returns
    True for the metric. It also checks nothing if evaluating one batch would take long or change the run.

    Args:
        metric: the full name of the metric.
        run: the run.
        reader: the name of the callback that reads the metric, for the error.

    Raises:
        ArgumentError: if no evaluation will measure the metric. The error lists the metrics of the evaluated batch.
    """
    subscribers = run.bus.subscribers.values()
    if run.state.global_step > 0 or not provides(subscribers, Capability.PLANS_EVALUATIONS):
        return
    if may_be_added(metric, run):
        return
    names = run.services.rehearse_evaluation()
    if names is not None and metric not in names:
        raise ArgumentError(
            f"{reader} reads the metric {metric!r}, but no evaluation will measure it{nearest(metric, names)} One "
            f"batch was evaluated before the first step. It measured: {', '.join(names)}. {_remedy(names)}"
        )


def _remedy(measured: Collection[str]) -> str:
    """Return what to do so that evaluations measure more metrics than `measured`."""
    if any(name.endswith("loss") for name in measured):
        return "To measure more, pass `compute_metrics=` or the callback `Metrics`."
    return (
        "It measured no loss, because the batch has no labels under the expected names. Name your labels, as in "
        "TrainingArguments(label_names=['target'])."
    )


def may_be_added(metric: str, run: Run) -> bool:
    """Return whether a metric may come from a callback with a `variant`, or from a handler outside of trainbus.

    The metric of a variant has a name such as `eval_<variant>_loss`. A handler outside of trainbus may add any metric.
    If True, a check before the first step cannot know whether the metric will be missing.
    """
    handlers = (handler.owner for event in _MEASURING for handler in run.bus.order_of(event))
    return _is_of_variant(metric, run) or any(map(_is_outside, handlers))


def require_evaluations(run: Run, reader: str) -> None:
    """Check that something can request evaluations: the arguments, a callback or a function of the user.

    Args:
        run: the run.
        reader: the name of the callback that needs evaluations, for the error.

    Raises:
        ArgumentError: if nothing in the run can request an evaluation.
    """
    if not may_evaluate(run):
        raise ArgumentError(f"{reader} needs evaluations, but this run makes none. {ADD_EVALUATIONS}")


def may_evaluate(run: Run) -> bool:
    """Return whether something in the run can request evaluations.

    The function returns True if the arguments or a callback request evaluations. It also returns True if a callback or
    function that is not part of trainbus is attached, because such code may request evaluations.
    """
    subscribers = run.bus.subscribers.values()
    return provides(subscribers, Capability.PLANS_EVALUATIONS) or any(map(_is_outside, subscribers))


ADD_EVALUATIONS = (
    "Set `eval_strategy` to 'steps' or 'epoch' and pass an `eval_dataset`, or add `Evaluate(...)` to the callbacks."
)
"""The end of errors and warnings about a run without evaluations: how to fix the run."""


_MEASURING = ("on_evaluate_begin", "on_evaluate_dataset", "on_log", "on_evaluate", "on_evaluate_end")
"""The events at which handlers may add metrics to an evaluation."""

_LIBRARY = __name__.partition(".")[0]


def _is_outside(subscriber: object) -> bool:
    """Return whether a callback or function is not part of trainbus."""
    owner = subscriber if hasattr(subscriber, "__qualname__") else type(subscriber)
    return str(getattr(owner, "__module__", "")).partition(".")[0] != _LIBRARY


def _number(metric: str, value: Any, reader: str) -> float:
    """Convert the value of a metric to a float. The error names the callback `reader`, which reads the metric.

    Raises:
        ArgumentError: if the value is text, even a number such as `"0.5"`, or if `float` cannot convert it.
    """
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise ArgumentError(
        f"{reader} reads the metric {metric!r}, but its value is {value!r}, a {type(value).__name__}. Return a number "
        "from `compute_metrics`; nan if it is undefined."
    )
