"""Check whether two triggers that are joined with `&` can be due at the same step."""

from __future__ import annotations

from typing import Any


def has_common_step(both: Any) -> bool:
    """Return whether a `Both`, two triggers that are joined with `&`, can ever be due.

    If one side lists its steps, and the other side is due at none of these steps, the result is False. For example,
    `at(3) & every(2)` is never due. Otherwise, the result is True.
    """
    steps = _named(both, type(both))
    return not steps or any(_may_be_due(both, step, type(both)) for step in steps)


def _named(trigger: Any, both: type) -> tuple[int, ...]:
    """Return the steps that a trigger lists, as `at(3)` does; an empty tuple if it lists no steps.

    Args:
        trigger: the trigger. If it is a `Both`, the function returns the steps of the first side that lists steps.
        both: the class `Both` of `trigger_kinds`. That module imports this module, so the class is a parameter.
    """
    if isinstance(trigger, both):
        sides: Any = trigger
        return _named(sides.left, both) or _named(sides.right, both)
    steps = getattr(trigger, "steps", None)
    return steps if isinstance(steps, tuple) else ()


def _may_be_due(trigger: Any, step: int, both: type) -> bool:
    """Return whether a trigger may be due at the end of a step. `both` is the class `Both` of `trigger_kinds`.

    The function knows the steps of `at(3)` and `every(100)`. For other triggers, such as `every("10min")`, it returns
    True.
    """
    if isinstance(trigger, both):
        sides: Any = trigger
        return _may_be_due(sides.left, step, both) and _may_be_due(sides.right, step, both)
    steps = getattr(trigger, "steps", None)
    if isinstance(steps, tuple):
        return step in steps
    if isinstance(steps, int) and not trigger.times:
        return step % steps == 0 and step >= trigger.after
    return True
