"""The record of one evaluation. `Run.evaluation` holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class EvaluationRecord:
    """One evaluation or prediction. The Trainer's evaluation methods write it."""

    prefix: str = "eval"
    """The prefix of the metric names."""
    complete: bool = True
    """Whether the evaluation covers all of the trainer's own eval datasets."""
    decides: bool = True
    """Whether callbacks decide from its metrics. False for other data under the names of the run's own metrics."""
    prefixes: frozenset[str] = frozenset()
    """The starts of its metric names, and of the evaluations around it."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics. Handlers that run before REPORT may add to them."""
    heard: dict[str, Any] = field(default_factory=dict)
    """The metrics that an overridden `evaluate` measured, logged or announced so far."""
    step: int = -1
    """The global step of the metrics; -1 before there are any."""
    dataset_name: str = ""
    """The name of the current dataset; empty for a single, unnamed one."""
    dataloader: Any = None
    """The loader of the evaluation batches."""
    batch: int = 0
    """The number of the current batch, from 0."""
