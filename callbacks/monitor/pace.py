"""The speed and the remaining time of a training session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.api.costs.verdict import duration
from ...events.timeline import EVALUATE

TOO_SHORT = 1.0
"""The length of a session, in seconds, from which its measured speed is shown."""


@dataclass(frozen=True)
class Pace:
    """The progress and the speed of one session of a run."""

    steps: int
    """The number of completed steps of the session, without the steps of earlier sessions."""
    remaining: int
    """The number of planned steps of the run that are not done yet."""
    seconds: float
    """The length of the session so far, in seconds."""
    evaluating: float = 0.0
    """The time of the evaluations in the session, in seconds."""
    evaluations: int = 0
    """The number of evaluations in the session."""

    @property
    def rate(self) -> float:
        """Steps per second, without the time of evaluations; 0 before the first step."""
        return self.steps / max(self.seconds - self.evaluating, 1e-9) if self.steps else 0.0

    @property
    def evaluations_left(self) -> float:
        """The expected time of the remaining evaluations, in seconds; 0 before the first evaluation of the session.

        The estimate assumes that evaluations are as frequent and as long as in the session so far.
        """
        if not self.evaluations:
            return 0.0
        left = self.remaining * self.evaluations // max(1, self.steps)
        return left * self.evaluating / self.evaluations

    @property
    def left(self) -> float | None:
        """The expected seconds to the end of the run, evaluations included; None before the session's first step."""
        return self.remaining / self.rate + self.evaluations_left if self.rate else None

    def __str__(self) -> str:
        if self.left is None or self.seconds < TOO_SHORT:
            return ""
        rate = f"{self.rate:.3g} steps/s" if self.rate >= 1 else f"{1 / self.rate:.3g} s/step"
        extra = f", {duration(round(self.evaluations_left))} of it evaluations" if self.evaluations_left >= 1 else ""
        left = duration(round(self.left)) if self.left >= 1 else "under 1 s"
        return f"{rate}  {left} left{extra}" if self.remaining else rate


def pace_of(run: Any) -> Pace:
    """Return the pace of the current training session of a run."""
    timeline, state = run.bus.timeline, run.state
    parts = timeline.sums().parts
    return Pace(
        state.global_step - run.session.first_step,
        max(0, state.max_steps - state.global_step),
        sum(parts.values()) * 1e-9,
        parts[EVALUATE] * 1e-9,
        timeline.times[EVALUATE],
    )
