"""Triggers: values that say when something is due. They can be combined, compared and printed."""

from __future__ import annotations

import math
from typing import Any

from .argument_types import is_number, is_whole
from .errors import ArgumentError, nearest
from .keywords import checked_keywords
from .trigger_kinds import (
    ANYWHERE,
    AtEnd,
    AtSteps,
    Both,
    Either,
    EveryCost,
    EveryEpochs,
    EverySeconds,
    EveryShare,
    EverySteps,
    LogSpaced,
    Moment,
    Never,
    Place,
    Trigger,
)

__all__ = [
    "ANYWHERE",
    "AtEnd",
    "AtSteps",
    "Both",
    "Either",
    "EveryCost",
    "EveryEpochs",
    "EverySeconds",
    "EveryShare",
    "EverySteps",
    "LogSpaced",
    "Moment",
    "Never",
    "Place",
    "Trigger",
    "at",
    "at_end",
    "every",
    "log_spaced",
    "never",
]

UNITS: dict[str, float] = {
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
}  # fmt: skip
"""The seconds of each unit of time."""


class _Default:
    """The type of `_DEFAULT`. If the argument `after` of `every` is `_DEFAULT`, the caller did not pass `after`."""

    def __repr__(self) -> str:
        return "0"


_DEFAULT: Any = _Default()


@checked_keywords
def every(
    interval: float | str,
    unit: str = "step",
    *,
    after: float = _DEFAULT,
    times: int = 0,
    overhead: float | None = None,
) -> Trigger:
    """Return a trigger that is due at regular intervals.

    Args:
        interval: `50` means every 50 steps, `0.1` every tenth of the run's steps, and `"10min"` every ten minutes of
            training. A number of epochs must be whole. The units of time are `s`, `min` and `h`. With `"auto"`, the
            interval depends on the measured cost of the work and on `overhead`.
        unit: the unit of `interval` if `interval` is a number: `"step"`, `"epoch"`, or a unit of time. Default: steps.
        after: the first step, epoch or second of the run at which the trigger may be due. `after` has the unit of the
            interval. If the interval is a time or `"auto"`, `after` is in seconds. The default is 60 for `"auto"`, and
            0 for other intervals.
        times: the minimum number of times that the trigger is due in the run. If the run is too short for this number,
            the interval becomes shorter. `times` works with intervals in steps only. Default: no minimum.
        overhead: the largest share of the training time that the work may take, above 0 and below 1. If work took 3
            seconds, then with 0.03 the trigger is due again after 100 seconds. `"auto"` requires `overhead`, and other
            intervals do not allow `overhead`. `"auto"` works with `Checkpoint`, `Evaluate`, `Log` and your subclasses
            of `Cadence`, because these callbacks measure the cost of their work. The cost of a save in the background
            includes the time of the background thread.

    Raises:
        ArgumentError: if the interval is not positive, if the unit is unknown, if `after` is negative, if `times` is
            used with another unit than steps, if `overhead` is used with another interval than `"auto"`, or if
            `"auto"` is used without `overhead`.
    """
    if isinstance(interval, str) and interval.strip().lower() == "auto":
        return _priced(unit, after, times, overhead)
    if isinstance(interval, str) and (hint := nearest(interval.strip().lower(), ("auto",))) != ".":
        raise ArgumentError(f"every({interval!r}) is not a number with a unit{hint}")
    if overhead is not None:
        raise ArgumentError(f'every({interval!r}, overhead={overhead!r}): overhead works with every("auto") only.')
    after = 0 if after is _DEFAULT else _plain(after)
    interval, times = _plain(interval), _plain(times)
    if isinstance(interval, str):
        number = interval.strip().rstrip("abcdefghijklmnopqrstuvwxyz ").strip()
        own_unit = interval.strip()[len(number) :].strip()
        if own_unit and unit != "step":
            raise ArgumentError(f"every({interval!r}, {unit!r}) has two units. Remove the second one.")
        unit = own_unit or unit
        try:
            interval = float(number)
        except ValueError:
            raise ArgumentError(
                f'every({interval!r}) is not a number with a unit. Write "10min", "30s" or "auto", for example.'
            ) from None
        interval = int(interval) if interval.is_integer() else interval
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not 0 < interval < math.inf:
        raise ArgumentError(f"every({interval!r}): the interval is not above 0. Pass a larger one, or use never().")
    if isinstance(after, bool) or not isinstance(after, (int, float)) or not 0 <= after < math.inf:
        raise ArgumentError(f"every({interval!r}, after={after!r}): after is not a number from 0. Pass 0 or more.")
    if not isinstance(unit, str):
        raise ArgumentError(f'every({interval!r}, {unit!r}): the unit is not a text. Pass "step", "epoch" or "min".')
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
    """Return a trigger that is due at the end of these steps. The first step is 1.

    Raises:
        ArgumentError: if there are no steps, or if a step is not a whole number of 1 or more.
    """
    steps = tuple(map(_plain, steps))
    if not steps or any(isinstance(step, bool) or not isinstance(step, int) or step < 1 for step in steps):
        raise ArgumentError(f"at{steps!r} does not name steps. Pass one or more whole numbers, each 1 or more.")
    return AtSteps(tuple(sorted(set(steps))))


@checked_keywords
def log_spaced(points: int) -> Trigger:
    """Return a trigger that is due at `points` steps, evenly spaced on a logarithmic scale over the run.

    In a short run, several points may be the same step.

    Raises:
        ArgumentError: if `points` is not a whole number of 1 or more.
    """
    points = _plain(points)
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise ArgumentError(
            f"log_spaced({points!r}): the number of points is not a whole number of 1 or more. Pass one, such as 10."
        )
    return LogSpaced(points)


@checked_keywords
def at_end(*, early: bool = True) -> Trigger:
    """Return a trigger that is due once, when the run ends.

    Args:
        early: whether the trigger is also due when a callback stops the run before its last planned step. A
            stop by a signal or a time limit does not count, because a later session can resume the run.
    """
    return AtEnd(early)


def never() -> Trigger:
    """Return a trigger that is never due."""
    return Never()


def _plain(value: Any) -> Any:
    """Convert a NumPy number, or a tensor with one number, to int or float. Return any other value unchanged."""
    dtype = getattr(value, "dtype", None)
    if isinstance(value, float) or dtype is None or "bool" in str(dtype) or not is_number(value):
        return value
    return int(value) if is_whole(value) else float(value)


def _priced(unit: str, after: float, times: int, overhead: float | None) -> EveryCost:
    if isinstance(overhead, bool) or not isinstance(overhead, (int, float)) or not 0 < overhead < 1:
        raise ArgumentError(
            f'every("auto", overhead={overhead!r}): the overhead is not a share of the training time. Pass a number '
            "above 0 and below 1, such as overhead=0.03."
        )
    if unit != "step" or times:
        raise ArgumentError('every("auto") has no unit and no times. Pass `overhead`, and `after` in seconds.')
    if after is _DEFAULT:
        return EveryCost(overhead)
    if isinstance(after, bool) or not isinstance(after, (int, float)) or not 0 <= after < math.inf:
        raise ArgumentError(f'every("auto", after={after!r}): after is not a number of seconds from 0. Pass 0 or more.')
    return EveryCost(overhead, after)


def _whole(interval: float, what: str) -> int:
    if interval != int(interval) or interval < 1:
        share = " For a share of the run, pass a number below 1 without a unit." if interval < 1 else ""
        raise ArgumentError(f"every({interval!r}) is not a whole number of {what}. Pass 1 or more.{share}")
    return int(interval)
