"""Retention: `Keep` selects the checkpoints that stay on disk, by their steps, training times and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ....events.errors import ArgumentError
from ....events.keywords import CheckedKeywords


class Retainable(Protocol):
    """The values of a checkpoint that `Keep` reads. `SavedCheckpoint` implements this protocol."""

    @property
    def step(self) -> int:
        """The number of completed steps at the save."""

    @property
    def seconds(self) -> float:
        """The training time of the run until the save, in seconds."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics measured at the step of the checkpoint."""


R = TypeVar("R", bound=Retainable)


@dataclass(frozen=True)
class Keep(CheckedKeywords):
    """Which checkpoints stay on disk.

    A checkpoint stays if at least one field selects this checkpoint. A field with its default selects no checkpoint. If
    no field is set, all checkpoints stay.

    The newest checkpoint always stays. The checkpoint that `load_best_model_at_end` loads also always stays.
    """

    last: int | None = None
    """The number of newest checkpoints to keep."""
    best: int = 0
    """The number of best checkpoints to keep, by the metric that selects the best model. If no evaluation
    measures the metric at the step of a checkpoint, `best` does not select this checkpoint."""
    multiples: int | None = None
    """Keep each checkpoint with a step number that is a multiple of this number. These checkpoints always stay."""
    total: int | None = None
    """The number of checkpoints to keep in total. If the other fields keep fewer checkpoints, the newest of
    the remaining checkpoints stay too, up to this number. If the other fields keep more checkpoints, `total` has no
    effect."""
    minutes: float | None = None
    """The length of an interval in minutes of training. The first checkpoint at or after the end of each interval
    always stays."""

    def __post_init__(self) -> None:
        for name in ("last", "multiples", "total"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"Keep({name}={value}) is below 1. Set 1 or more, or leave it out for no limit.")
        if self.minutes is not None and not self.minutes > 0:
            raise ArgumentError(
                f"Keep(minutes={self.minutes}) is not positive. Set a positive number, or leave it out."
            )
        if self.best < 0:
            raise ArgumentError(f"Keep(best={self.best}) is negative. Set 0 or more.")

    @property
    def keeps_all(self) -> bool:
        """Whether all checkpoints stay, because no field is set."""
        return self == Keep()

    def superfluous(
        self,
        checkpoints: Sequence[R],
        *,
        pinned: set[int],
        metric: str = "",
        greater_is_better: bool = False,
    ) -> list[R]:
        """Return the checkpoints to delete, oldest first.

        Args:
            checkpoints: the undamaged checkpoints of one run, oldest first.
            pinned: the steps of checkpoints that always stay.
            metric: the metric that the field `best` compares. With an empty text, `best` selects no checkpoint.
            greater_is_better: whether a greater value of the metric is better.
        """
        if not checkpoints or self.keeps_all:
            return []
        stay = pinned | {checkpoints[-1].step}
        if self.multiples is not None:
            stay |= {checkpoint.step for checkpoint in checkpoints if checkpoint.step % self.multiples == 0}
        if self.minutes is not None:
            stay |= _first_in_each(checkpoints, 60 * self.minutes)
        if self.best:
            measured = [checkpoint for checkpoint in checkpoints if not math.isnan(_measured(checkpoint, metric))]
            measured.sort(key=lambda checkpoint: _measured(checkpoint, metric), reverse=greater_is_better)
            stay |= {checkpoint.step for checkpoint in measured[: self.best]}
        newest_first = [checkpoint.step for checkpoint in reversed(checkpoints)]
        if self.last is not None:
            stay |= set(newest_first[: self.last])
        if self.total is not None:
            free = self.total - len(stay)
            stay |= {step for step in newest_first if step not in stay and (free := free - 1) >= 0}
        return [checkpoint for checkpoint in checkpoints if checkpoint.step not in stay]


def _first_in_each(checkpoints: Sequence[Retainable], span: float) -> set[int]:
    """Return the steps of the checkpoints that stay because of `Keep.minutes`. `span` is the interval in seconds."""
    first: dict[int, int] = {}
    for checkpoint in checkpoints:
        first.setdefault(int(checkpoint.seconds // span), checkpoint.step)
    return {step for number, step in first.items() if number > 0}


def _measured(checkpoint: Retainable, metric: str) -> float:
    """Return a metric of a checkpoint; NaN if the checkpoint has no such number. `Keep` ignores NaN for `best`."""
    value = checkpoint.metrics.get(metric)
    return float(value) if isinstance(value, (int, float)) else math.nan
