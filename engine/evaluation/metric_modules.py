"""Use metrics of the library `evaluate` as `compute_metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...events.errors import ArgumentError
from ..data.batches import IGNORED_LABEL
from .outputs import EvalPrediction, batches_of
from .readings import NO_LABELS


def as_metric_function(given: Any) -> Any:
    """Return a `MetricModule` for a metric of the library `evaluate`. Return any other value unchanged."""
    is_metric = not callable(given) and callable(getattr(given, "compute", None)) and hasattr(given, "add_batch")
    return MetricModule(given) if is_metric else given


@dataclass
class MetricModule:
    """A `compute_metrics` that calls the method `compute` of a metric of the library `evaluate`.

    If the predictions are floats with one dimension more than the labels, the argmax over the last dimension gives the
    classes. If the last dimension has the size 1, it is removed instead. Labels of -100 and their predictions are left
    out. If the model returns several outputs, or if there are several labels, only the first of them is used.
    """

    metric: Any
    """The metric that `evaluate.load("accuracy")` returns, or several metrics that `evaluate.combine` returns."""

    def __call__(self, prediction: EvalPrediction) -> dict[str, Any]:
        """Compute the metric of an evaluation."""
        pairs = [self._read(*batch) for batch in batches_of(prediction)]
        predictions, labels = (np.concatenate(parts) for parts in zip(*pairs))
        computed: dict[str, Any] = self.metric.compute(predictions=predictions, references=labels)
        return computed

    @staticmethod
    def _read(outputs: Any, label_ids: Any) -> tuple[Any, Any]:
        """Convert outputs and labels of a batch to the predictions and references that the metric compares."""
        predictions, labels = (np.asarray(_first(part)) for part in (outputs, label_ids))
        if predictions.ndim == labels.ndim + 1 and predictions.dtype.kind == "f":
            predictions = predictions[..., 0] if predictions.shape[-1] == 1 else predictions.argmax(-1)
        if predictions.shape == labels.shape and labels.dtype.kind in "iu":
            counted = labels != IGNORED_LABEL
            if labels.ndim > 1 or not counted.all():
                predictions, labels = predictions[counted], labels[counted]
        return predictions, labels


def _first(part: Any) -> Any:
    if isinstance(part, (tuple, list)) and not part:
        raise ArgumentError(NO_LABELS)
    return part[0] if isinstance(part, (tuple, list)) else part
