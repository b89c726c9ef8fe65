"""Retention: which checkpoints stay, as a pure function of what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....events.errors import ArgumentError
from ..format.files import Checkpoint


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay on disk. The newest always does, and the one that is to be loaded at the end.

    A checkpoint stays if any of the fields wants it; with none of them set, all stay.
    """

    last: int | None = None
    """This many of the newest."""
    best: int = 0
    """This many of the best, by the metric that chooses the best model."""
    multiples: int | None = None
    """Those whose step is a multiple of this, for good."""
    total: int | None = None
    """At most this many in all, filled up with the newest; those that must stay count, even if they are more."""
    minutes: float | None = None
    """One of every so many minutes of training, for good: the first at or after each."""

    def __post_init__(self) -> None:
        for name in ("last", "multiples", "total"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"Keep({name}={value}): keep at least 1, or leave it out to set no limit.")
        if self.minutes is not None and not self.minutes > 0:
            raise ArgumentError(f"Keep(minutes={self.minutes}): give more than 0, or leave it out.")
        if self.best < 0:
            raise ArgumentError(f"Keep(best={self.best}): this cannot be negative.")

    def superfluous(
        self,
        checkpoints: list[Checkpoint],
        *,
        pinned: set[int],
        metric: str = "",
        greater_is_better: bool = False,
    ) -> list[Checkpoint]:
        """Return the checkpoints to delete, oldest first.

        Args:
            checkpoints: the good ones of one run, oldest first.
            pinned: steps that must stay, whatever the fields say.
            metric: the metric that `best` compares.
            greater_is_better: its direction.
        """
        if not checkpoints or self == Keep():
            return []
        stay = pinned | {checkpoints[-1].step}
        if self.multiples is not None:
            stay |= {checkpoint.step for checkpoint in checkpoints if checkpoint.step % self.multiples == 0}
        if self.minutes is not None:
            stay |= _one_of_each(checkpoints, 60 * self.minutes)
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


def _one_of_each(checkpoints: list[Checkpoint], span: float) -> set[int]:
    """Return the step of the first checkpoint in every span of training but the one at the very beginning."""
    first: dict[int, int] = {}
    for checkpoint in checkpoints:
        first.setdefault(int(checkpoint.seconds // span), checkpoint.step)
    return {step for number, step in first.items() if number > 0}


def _measured(checkpoint: Checkpoint, metric: str) -> float:
    """Return a metric of a checkpoint; NaN, which is never among the best, where it was not measured."""
    value = checkpoint.metrics.get(metric)
    return float(value) if isinstance(value, (int, float)) else math.nan
