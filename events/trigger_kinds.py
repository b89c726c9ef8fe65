"""The classes of triggers. The functions in `triggers.py`, such as `every` and `at`, build the triggers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from .common_steps import has_common_step
from .errors import ArgumentError

Place = Literal["step", "epoch"]
ANYWHERE: frozenset[Place] = frozenset({"step", "epoch"})


class Moment(NamedTuple):
    """A point of a run at which triggers are evaluated: the end of a step, or the end of an epoch."""

    place: Place
    """`step` for the end of a step, `epoch` for the end of an epoch."""
    step: int
    """Optimizer steps done."""
    epoch: float
    """Epochs done."""
    max_steps: int
    """Optimizer steps planned."""
    seconds: float = 0.0
    """Seconds spent training."""
    last: bool = False
    """Whether the run ends at this moment, because the run is complete or a callback requested a stop. False for stops
    by signals and time limits, because a later session can resume the run."""
    cut: bool = False
    """Whether a stop ended the epoch early. A resumed run then completes the epoch."""
    cost: float | None = None
    """Seconds that the last work took, such as the last save of `Checkpoint`. Infinity before the first measurement.
    None if the callback with the trigger does not measure its work."""


class Trigger:
    """A value that says when something is due. Combine triggers with `|` (either) and `&` (both at the same moment)."""

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        """Return whether the trigger is due `now`.

        `before` is the moment at which the trigger was last due; None if it was never due.
        """
        raise NotImplementedError

    def due_again(self, now: Moment, before: Moment | None) -> bool:
        """Return whether the trigger is due `now`, and was not already due in the same step.

        The last step of an epoch has two moments: the end of the step, and the end of the epoch. `before` is the moment
        at which the trigger was last due; None if it was never due.
        """
        return (before is None or before.step != now.step) and self.due(now, before)

    def wakes(self, step: int, max_steps: int) -> float:
        """Return the next step at whose end the trigger must be evaluated; infinity if there is no such step.

        At the end of the returned step, the trigger may be due or not. For example, `every(100)` returns 200 for step
        130: the trigger is not due at the end of the steps 131 to 199. The only exception is an early stop of the run,
        which can make the trigger due earlier if the property `unforeseen` is True.
        """
        return step + 1

    places: ClassVar[frozenset[Place]] = frozenset({"step"})
    """The places at which the trigger may be due: the end of a step, the end of an epoch, or both."""

    @property
    def clocked(self) -> bool:
        """Whether the trigger reads the clock, so that the trigger may be due on some ranks only."""
        return False

    @property
    def priced(self) -> bool:
        """Whether the trigger reads the duration of the last work that was due, such as the last save.

        Only a `Cadence` callback measures this duration.
        """
        return False

    @property
    def unforeseen(self) -> bool:
        """Whether an early stop of the run makes the trigger due, as with `at_end()`. `wakes` cannot know this stop."""
        return False

    def __or__(self, other: Trigger) -> Trigger:
        return Either(self, other) if isinstance(other, Trigger) else NotImplemented

    def __and__(self, other: Trigger) -> Trigger:
        return Both(self, other) if isinstance(other, Trigger) else NotImplemented


@dataclass(frozen=True)
class EverySteps(Trigger):
    """Due at the end of each step that is at least `after` and a multiple of `steps`.

    If `times` is above 0, a short run uses a shorter interval, so that the trigger is due at least `times` times.
    """

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
    """Due at the end of every n-th step. n is `share` times the steps of the run, rounded up."""

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
    """Due at the end of each epoch whose number is a multiple of `epochs` and at least `after`.

    If a stop ends an epoch early, the trigger is not due, because the resumed run completes the epoch.
    """

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
    """Due at the end of a step, if `seconds` seconds of training have passed since the trigger was last due.

    The trigger is first due after `max(seconds, after)` seconds of training.
    """

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
class EveryCost(Trigger):
    """Due at the end of a step, at intervals that depend on how long the work of the callback takes.

    For example, if the last save took 3 seconds and `overhead` is 0.03, the trigger is due again after 100 seconds of
    training.
    """

    overhead: float
    """The largest share of the training time that the work may take, above 0 and below 1."""
    after: float = 60
    """The seconds of training after which the trigger is first due. Until the first work is done, its cost is
    unknown."""

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        if now.cost is None:
            raise ArgumentError(
                f"{self!r} needs a callback that measures its work: Checkpoint, Evaluate, Log, or your subclass of "
                'Cadence. Use an interval in steps or time, such as every(100) or every("10min").'
            )
        if now.place != "step" or now.seconds < self.after:
            return False
        return before is None or now.cost <= self.overhead * (now.seconds - before.seconds)

    @property
    def clocked(self) -> bool:
        return True

    @property
    def priced(self) -> bool:
        return True

    def __repr__(self) -> str:
        after = "" if self.after == 60 else f", after={_plain(self.after)}"
        return f'every("auto", overhead={self.overhead}{after})'


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
        """Return the steps, from 1 to `max_steps`, at which the trigger is due in a run of `max_steps` steps."""
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
    """Due once, when the run ends. With `early=False`, due only if the run ends with its last planned step."""

    early: bool = True

    places = ANYWHERE

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        ends = now.last and (self.early or now.step >= now.max_steps)
        return ends and (before is None or before.step != now.step)

    def wakes(self, step: int, max_steps: int) -> float:
        return max(
            step + 1, max_steps
        )  # if a run stops earlier, it still announces the end of an epoch, where the trigger is evaluated

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


def alternatives(trigger: Trigger) -> list[Trigger]:
    """Return the triggers that `|` joins in `trigger`. If `trigger` has no `|`, return a list of `trigger` alone."""
    if isinstance(trigger, Either):
        return [*alternatives(trigger.left), *alternatives(trigger.right)]
    return [trigger]


@dataclass(frozen=True)
class Either(Trigger):
    """Due when at least one of two triggers is due."""

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
    def priced(self) -> bool:
        return self.left.priced or self.right.priced

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

    @property
    def priced(self) -> bool:
        return self.left.priced or self.right.priced

    def wakes(self, step: int, max_steps: int) -> float:
        # If the run stops early, `at_end()` is due at once. The other side may be due only at the end of this step, not
        # at the end of the epoch. So such a pair is evaluated at every step.
        sides = (self.left, self.right)
        return max(step + 1 if side.unforeseen else side.wakes(step, max_steps) for side in sides)

    def __repr__(self) -> str:
        return f"{_within(self.left, Either)} & {_within(self.right, Either, Both)}"


def _after(after: float) -> str:
    return f", after={_plain(after)}" if after else ""


def _times(times: int) -> str:
    return f", times={times}" if times else ""


def _plain(number: float) -> str:
    """Return a number as text. A whole number has no `.0`."""
    return str(int(number)) if number % 1 == 0 else str(number)


def _within(trigger: Trigger, *kinds: type[Trigger]) -> str:
    return f"({trigger!r})" if isinstance(trigger, kinds) else repr(trigger)
