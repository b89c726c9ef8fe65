"""`EvaluationRecord`: metrics, metric names, data and current batch of one evaluation.

The attribute `Run.evaluation` is the `EvaluationRecord` of the current or last evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class EvaluationPlan(NamedTuple):
    """The settings that an `Evaluate` callback gives to its evaluations."""

    rows: int | None = None
    """The size of the random subset of each dataset to evaluate, in rows; None for all rows."""
    decides: bool = True
    """Whether callbacks use the metrics of the evaluation to decide."""
    repeats: bool = False
    """Whether a resumed run repeats the evaluation if a signal stops it."""


@dataclass
class EvaluationRecord:
    """The metrics, metric names, data and current batch of one evaluation or prediction.

    The Trainer's evaluation methods set the fields.
    """

    prefix: str = "eval"
    """The prefix of the metric names."""
    complete: bool = True
    """Whether the evaluation covers all of the trainer's own eval datasets."""
    decides: bool = True
    """Whether callbacks may decide from the metrics. False if `EvaluationPlan.decides` is False, if the dataset is not
    the trainer's but has the same metric names, or if this evaluation runs inside of another evaluation that has the
    same metric names."""
    prefixes: frozenset[str] = frozenset()
    """The prefixes of the metric names of this evaluation, and of the evaluations in which this evaluation runs."""
    rows: int | None = None
    """The size of the random subset of each dataset, in rows; None for all rows. After the evaluation, it is None."""
    repeats: bool = False
    """Whether a signal may stop the evaluation; a resumed run then repeats it. If False, the evaluation completes
    first. False for an evaluation inside of another evaluation."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics by name. Handlers in a stage before REPORT may add metrics."""
    heard: dict[str, Any] = field(default_factory=dict)
    """The metrics so far of an `evaluate` that a subclass of `Trainer` overrides. `metrics` has them when the override
    returns. Empty without an override."""
    step: int = -1
    """The global step at which the metrics were measured; -1 before the first metrics."""
    dataset_name: str = ""
    """The name of the current dataset; empty for a dataset without a name."""
    dataloader: Any = None
    """The loader of the evaluation batches."""
    batch_number: int = 0
    """The number of the current batch, from 0."""
    empty: bool = False
    """Whether the evaluation of the current or last dataset got no batch."""

    def measured(self, metrics: dict[str, Any], step: int) -> None:
        """Set the attributes `metrics` and `step`."""
        self.metrics, self.step = metrics, step


def new_record(
    prefix: str,
    complete: bool,
    foreign: bool,
    own: frozenset[str],
    plan: EvaluationPlan,
    outer: EvaluationRecord | None,
) -> EvaluationRecord:
    """Create the record of a new evaluation.

    Args:
        prefix: the prefix of the metric names.
        complete: whether the evaluation covers all of the trainer's own eval datasets.
        foreign: True if the evaluation uses other data, but has the metric names of the trainer's eval datasets.
        own: the prefixes of the metric names of the evaluation, one per dataset.
        plan: the settings of the `Evaluate` callback that started the evaluation. An evaluation inside of another
            evaluation ignores `plan`.
        outer: the record of the evaluation in which the new evaluation runs; None if there is none.
    """
    if outer is None:
        return EvaluationRecord(prefix, complete, plan.decides and not foreign, own, plan.rows, plan.repeats)
    # Inside of another evaluation, equal names would be two values of one metric: the outer one counts.
    return EvaluationRecord(prefix, complete, not foreign and not own & outer.prefixes, own | outer.prefixes)


class PlannedRun(Protocol):
    """The attributes of a run that the function `planned` changes. `Run` implements this protocol."""

    evaluation_plan: EvaluationPlan
    evaluation: EvaluationRecord


@contextmanager
def planned(run: PlannedRun, plan: EvaluationPlan) -> Iterator[None]:
    """Use the settings in `plan` for the evaluations in a `with` block.

    An evaluation that starts during another evaluation does not use `plan`.
    """
    before, run.evaluation_plan = run.evaluation_plan, plan
    try:
        yield
    finally:
        run.evaluation_plan, run.evaluation.rows = before, None
