"""The speed of a training session and the time that is left. Only one function reads a run. The others are pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.api.costs.verdict import duration
from ...events.timeline import EVALUATE

TOO_SHORT = 1.0
"""The length of a session in seconds above which its measured speed is reliable."""


@dataclass(frozen=True)
class Pace:
    """The progress of one session. Steps of earlier sessions do not count."""

    steps: int
    """Completed steps."""
    remaining: int
    """Planned steps that are left."""
    seconds: float
    """Seconds of the session."""
    evaluating: float = 0.0
    """Seconds of evaluations in the session."""
    evaluations: int = 0
    """Completed evaluations in the session."""

    @property
    def rate(self) -> float:
        """Steps per second, without the time of evaluations; 0 if unknown."""
        return self.steps / max(self.seconds - self.evaluating, 1e-9) if self.steps else 0.0

    @property
    def evaluations_left(self) -> float:
        """The seconds of all remaining evaluations, estimated from those of this session; 0 before the first one."""
        if not self.evaluations:
            return 0.0
        left = self.remaining * self.evaluations // max(1, self.steps)
        return left * self.evaluating / self.evaluations

    @property
    def left(self) -> float | None:
        """Seconds to the end, including evaluations; None if unknown."""
        return self.remaining / self.rate + self.evaluations_left if self.rate else None

    def __str__(self) -> str:
        if self.left is None or self.seconds < TOO_SHORT:
            return ""
        rate = f"{self.rate:.3g} steps/s" if self.rate >= 1 else f"{1 / self.rate:.3g} s/step"
        extra = f", {duration(round(self.evaluations_left))} of it evaluations" if self.evaluations_left >= 1 else ""
        left = duration(round(self.left)) if self.left >= 1 else "under 1 s"
        return f"{rate}  {left} left{extra}" if self.remaining else rate


def pace_of(run: Any) -> Pace:
    """Return the pace of the present training session."""
    timeline, state = run.bus.timeline, run.state
    parts = timeline.sums().parts
    return Pace(
        state.global_step - run.session.first_step,
        max(0, state.max_steps - state.global_step),
        sum(parts.values()) * 1e-9,
        parts[EVALUATE] * 1e-9,
        timeline.times[EVALUATE],
    )
