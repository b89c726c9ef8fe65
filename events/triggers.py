"""Triggers: values that say when something is due. They can be combined, compared and printed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from .common_steps import has_common_step
from .errors import ArgumentError, nearest

Place = Literal["step", "epoch"]
ANYWHERE: frozenset[Place] = frozenset({"step", "epoch"})


class Moment(NamedTuple):
    """A point of a run at which triggers are evaluated: the end of a step, or the end of an epoch."""

    place: Place
    """The end of a step, or of an epoch."""
    step: int
    """Optimizer steps done."""
    epoch: float
    """Epochs done."""
    max_steps: int
    """Optimizer steps planned."""
    seconds: float = 0.0
    """Seconds spent training."""
    last: bool = False
    """Whether the run ends here: it is complete, or a callback requested a stop. Signals and time limits only pause."""
    cut: bool = False
    """Whether a stop ended the epoch early. A resumed run continues inside the epoch, and reaches its end."""


class Trigger:
    """A value that says when something is due. Combine triggers with `|` (either) and `&` (both at the same moment)."""

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        """Return whether the trigger is due `now`. `before` is the moment at which it was last due."""
        raise NotImplementedError

    def wakes(self, step: int, max_steps: int) -> float:
        """Return a step after `step` before which the trigger is never due; infinity if it is never due again.

        The trigger need not be evaluated until this step. It may be due later than this step.
        """
        return step + 1

    places: ClassVar[frozenset[Place]] = frozenset({"step"})
    """The ends at which the trigger may be due: of steps, of epochs, or of both."""

    @property
    def clocked(self) -> bool:
        """Whether the trigger reads the clock, which differs between ranks."""
        return False

    @property
    def unforeseen(self) -> bool:
        """Whether an early stop of the run can make the trigger due before the step that `wakes` returns."""
        return False

    def __or__(self, other: Trigger) -> Trigger:
        return Either(self, other) if isinstance(other, Trigger) else NotImplemented

    def __and__(self, other: Trigger) -> Trigger:
        return Both(self, other) if isinstance(other, Trigger) else NotImplemented


@dataclass(frozen=True)
class EverySteps(Trigger):
    """Due at the end of every n-th step. In a short run it is due more often, at least `times` times."""

    steps: int
    after: float = 0
    times: int = 0

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return now.place == "step" and now.step % self._interval(now.max_steps) == 0 and now.step >= self.after

    def wakes(self, step: int, max_steps: int) -> float:
        interval = self._interval(max_steps)
        return (step // interval + 1) * interval

    def _interval(self, max_steps: int) -> int:
        # The steps after the delay hold at least `times` intervals.
        return min(self.steps, max(1, int(max_steps - self.after) // self.times)) if self.times else self.steps

    def __repr__(self) -> str:
        return f"every({self.steps}{_after(self.after)}{_times(self.times)})"


@dataclass(frozen=True)
class EveryShare(Trigger):
    """Due at regular intervals that are given as a fraction of the run. The interval in steps is rounded up."""

    share: float
    after: float = 0
    times: int = 0

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return self._in_steps(now.max_steps).due(now, before)

    def wakes(self, step: int, max_steps: int) -> float:
        return self._in_steps(max_steps).wakes(step, max_steps)

    def _in_steps(self, max_steps: int) -> EverySteps:
        return EverySteps(max(1, math.ceil(max_steps * self.share)), self.after, self.times)

    def __repr__(self) -> str:
        return f"every({self.share}{_after(self.after)}{_times(self.times)})"


@dataclass(frozen=True)
class EveryEpochs(Trigger):
    """Due at the end of every n-th epoch. An epoch that a stop cuts short does not end: the resumed run ends it."""

    epochs: int
    after: float = 0

    places = frozenset({"epoch"})

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        ends = now.place == "epoch" and not now.cut
        return ends and math.ceil(now.epoch) % self.epochs == 0 and now.epoch >= self.after

    def wakes(self, step: int, max_steps: int) -> float:
        return math.inf

    def __repr__(self) -> str:
        return f'every({self.epochs}, "epoch"{_after(self.after)})'


@dataclass(frozen=True)
class EverySeconds(Trigger):
    """Due at the end of the first step when n seconds of training have passed since it was last due."""

    seconds: float
    after: float = 0

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        since = before.seconds if before is not None else 0.0
        return now.place == "step" and now.seconds - since >= self.seconds and now.seconds >= self.after

    @property
    def clocked(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f'every("{_plain(self.seconds)}s"{_after(self.after)})'


@dataclass(frozen=True)
class AtSteps(Trigger):
    """Due at the end of the given steps."""

    steps: tuple[int, ...]

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return now.place == "step" and now.step in self.steps

    def wakes(self, step: int, max_steps: int) -> float:
        return min((named for named in self.steps if named > step), default=math.inf)

    def __repr__(self) -> str:
        return f"at({', '.join(map(str, self.steps))})"


@dataclass(frozen=True)
class LogSpaced(Trigger):
    """Due at steps that are evenly spaced on a logarithmic scale, from the first step to the last."""

    points: int

    def steps(self, max_steps: int) -> frozenset[int]:
        """Return the steps at which the trigger is due in a run of `max_steps`."""
        if max_steps < 1:
            return frozenset()
        exponents = (index / max(1, self.points - 1) for index in range(self.points))
        return frozenset(round(max_steps**exponent) for exponent in exponents)

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return now.place == "step" and now.step in self.steps(now.max_steps)

    def wakes(self, step: int, max_steps: int) -> float:
        return min((point for point in self.steps(max_steps) if point > step), default=math.inf)

    def __repr__(self) -> str:
        return f"log_spaced({self.points})"


@dataclass(frozen=True)
class AtEnd(Trigger):
    """Due when the run ends, unless it was last due at the same step."""

    early: bool = True

    places = ANYWHERE

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        ends = now.last and (self.early or now.step >= now.max_steps)
        return ends and (before is None or before.step != now.step)

    def wakes(self, step: int, max_steps: int) -> float:
        return max(step + 1, max_steps)  # a run that stops earlier still announces the end of an epoch

    @property
    def unforeseen(self) -> bool:
        return self.early

    def __repr__(self) -> str:
        return "at_end()" if self.early else "at_end(early=False)"


@dataclass(frozen=True)
class Never(Trigger):
    """Never due."""

    places = ANYWHERE

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return False

    def wakes(self, step: int, max_steps: int) -> float:
        return math.inf

    def __repr__(self) -> str:
        return "never()"


@dataclass(frozen=True)
class Either(Trigger):
    """Due when one of two triggers is due."""

    left: Trigger
    right: Trigger

    @property
    def places(self) -> frozenset[Place]:  # type: ignore[override]
        return self.left.places | self.right.places

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return self.left.due(now, before) or self.right.due(now, before)

    @property
    def clocked(self) -> bool:
        return self.left.clocked or self.right.clocked

    @property
    def unforeseen(self) -> bool:
        return self.left.unforeseen or self.right.unforeseen

    def wakes(self, step: int, max_steps: int) -> float:
        return min(self.left.wakes(step, max_steps), self.right.wakes(step, max_steps))

    def __repr__(self) -> str:
        return f"{self.left!r} | {_within(self.right, Either)}"


@dataclass(frozen=True)
class Both(Trigger):
    """Due when two triggers are due at the same moment."""

    left: Trigger
    right: Trigger

    def __post_init__(self) -> None:
        why = "one side is due after steps, the other after epochs" if not self.places else "no step fits both sides"
        if not self.places or not has_common_step(self):
            raise ArgumentError(f"{self!r} can never be due: {why}. Use | in place of &.")

    @property
    def places(self) -> frozenset[Place]:  # type: ignore[override]
        return self.left.places & self.right.places

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return self.left.due(now, before) and self.right.due(now, before)

    @property
    def clocked(self) -> bool:
        return self.left.clocked or self.right.clocked

    def wakes(self, step: int, max_steps: int) -> float:
        # An early end is also evaluated at the end of the epoch, but there the other side may not be due.
        sides = (self.left, self.right)
        return max(step + 1 if side.unforeseen else side.wakes(step, max_steps) for side in sides)

    def __repr__(self) -> str:
        return f"{_within(self.left, Either)} & {_within(self.right, Either, Both)}"


UNITS: dict[str, float] = {
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
}  # fmt: skip
"""The seconds of each unit of time."""


def every(interval: float | str, unit: str = "step", *, after: float = 0, times: int = 0) -> Trigger:
    """Return a trigger that is due at regular intervals.

    Args:
        interval: `50` is every 50 steps, `0.1` every tenth of the run, `"10min"` every ten minutes of training
            (units `s`, `min`, `h`).
        unit: `"step"`, `"epoch"`, or a unit of time.
        after: the trigger is not due before this number of steps, epochs or seconds. `unit` says which.
        times: for steps, the minimum number of times that the trigger is due in the run. In a short run the interval
            is shorter than `interval`. Default: no minimum.

    Raises:
        ArgumentError: if the interval is not positive, the unit is unknown, or `times` is used with another unit.
    """
    if isinstance(interval, str):
        number = interval.strip().rstrip("abcdefghijklmnopqrstuvwxyz ").strip()
        unit = interval.strip()[len(number) :].strip() or "step"
        try:
            interval = float(number)
        except ValueError:
            raise ArgumentError(
                f'every({interval!r}) is not a number with a unit. Write "10min" or "30s", for example.'
            ) from None
        interval = int(interval) if interval.is_integer() else interval
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not 0 < interval < math.inf:
        raise ArgumentError(f"every({interval!r}): the interval is not above 0. Pass a larger one, or use never().")
    if isinstance(after, bool) or not isinstance(after, (int, float)) or not 0 <= after < math.inf:
        raise ArgumentError(f"every({interval!r}, after={after!r}): after is not a number from 0. Pass 0 or more.")
    name = unit.strip().lower()
    if isinstance(times, bool) or not isinstance(times, int) or times < 0:
        raise ArgumentError(
            f"every({interval!r}, times={times!r}): times is not a whole number of 0 or more. Pass one, such as 3."
        )
    if times and name not in ("step", "steps"):
        raise ArgumentError(f"every({interval!r}, {unit!r}, times={times}): times works with steps only. Remove it.")
    if name in ("step", "steps"):
        if interval < 1:
            return EveryShare(interval, after, times)
        return EverySteps(_whole(interval, "steps"), after, times)
    if name in ("epoch", "epochs"):
        return EveryEpochs(_whole(interval, "epochs"), after)
    if name in UNITS:
        return EverySeconds(interval * UNITS[name], after)
    known = ("step", "epoch", *UNITS)
    raise ArgumentError(
        f"every({interval!r}, {unit!r}) has an unknown unit{nearest(name, known)} Known: {', '.join(known)}."
    )


def at(*steps: int) -> Trigger:
    """Return a trigger that is due at the end of these steps. The first step is 1."""
    if not steps or any(isinstance(step, bool) or not isinstance(step, int) or step < 1 for step in steps):
        raise ArgumentError(f"at{steps!r} does not name steps. Pass one or more whole numbers, each 1 or more.")
    return AtSteps(tuple(sorted(set(steps))))


def log_spaced(points: int) -> Trigger:
    """Return a trigger that is due at `points` steps, evenly spaced on a logarithmic scale over the run."""
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise ArgumentError(
            f"log_spaced({points!r}): the number of points is not a whole number of 1 or more. Pass one, such as 10."
        )
    return LogSpaced(points)


def at_end(*, early: bool = True) -> Trigger:
    """Return a trigger that is due when the run ends. It is not due twice at the same step.

    Args:
        early: whether the trigger is also due when a callback ends the run early. It is not due at a signal or a time
            limit, because these only pause the run.
    """
    return AtEnd(early)


def never() -> Trigger:
    """Return a trigger that is never due."""
    return Never()


def _whole(interval: float, what: str) -> int:
    if interval != int(interval) or interval < 1:
        raise ArgumentError(
            f"every({interval!r}) is not a whole number of {what}. Pass 1 or more, or a fraction of the run below 1."
        )
    return int(interval)


def _after(after: float) -> str:
    return f", after={_plain(after)}" if after else ""


def _times(times: int) -> str:
    return f", times={times}" if times else ""


def _plain(number: float) -> str:
    """Return a number as text, a whole one without `.0`."""
    return str(int(number)) if number % 1 == 0 else str(number)


def _within(trigger: Trigger, *kinds: type[Trigger]) -> str:
    return f"({trigger!r})" if isinstance(trigger, kinds) else repr(trigger)
