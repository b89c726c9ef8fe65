"""Check the fields of callbacks that hold a trigger, before a run evaluates them."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from .annotations import classes_of, classes_of_field, names_of_module
from .errors import ArgumentError
from .trigger_kinds import Trigger, alternatives
from .triggers import every

_ABSENT: Any = object()
_EXAMPLES = 'Pass one, such as every(500), every(1, "epoch"), every("10min") or at(10).'


def problems_of_triggers(callback: object) -> list[str]:
    """Return an error text for each dataclass field of a callback that must be a trigger, but has another value.

    The check skips a field that has no value, or whose annotation cannot be resolved.
    """
    found = []
    for each in fields(callback) if is_dataclass(callback) and not isinstance(callback, type) else ():
        value = getattr(callback, each.name, _ABSENT)
        if value is _ABSENT or isinstance(value, Trigger):
            continue
        classes = classes_of_field(type(callback), each.name) or _classes_by_default(type(callback), each)
        takes = any(issubclass(cls, Trigger) for cls in classes)
        if takes and not isinstance(value, tuple(cls for cls in classes if not issubclass(cls, Trigger))):
            found.append(f"{type(callback).__name__}({each.name}={value!r}): {_remedy(value)}")
    return found


def _classes_by_default(cls: type, field: Field[Any]) -> tuple[type, ...]:
    """Return the classes in the annotation of a field that has a trigger as its default; () for other fields.

    The annotation must be a text, such as 'Trigger | None'. The name `Trigger` in the text is known, even if the module
    of `cls` does not import this name. If another name in the text cannot be resolved, return ().
    """
    if not isinstance(field.type, str) or "Trigger" not in field.type or not isinstance(_default_of(field), Trigger):
        return ()
    return classes_of(field.type, {"Trigger": Trigger, **names_of_module(cls.__module__)}) or ()


def _default_of(field: Field[Any]) -> Any:
    if field.default_factory is MISSING:
        return field.default
    try:
        return field.default_factory()
    except Exception:  # the class has been built already, so this default may only be used once
        return _ABSENT


def check_triggers(callback: object, *, priced: bool = False, in_steps: bool = False) -> None:
    """Check the fields of a callback that hold a trigger.

    Args:
        callback: the callback.
        priced: whether the callback measures the cost of its work. `every("auto")` needs this cost.
        in_steps: whether the callback evaluates its trigger at the end of steps only. There, a trigger such as
            `every(1, "epoch")` is never due.

    Raises:
        ArgumentError: if a field has a wrong value. The error names the field, and says how to fix the value.
    """
    if problems := problems_of_triggers(callback):
        raise ArgumentError(" ".join(problems))
    for each in fields(callback):  # type: ignore[arg-type]
        trigger = getattr(callback, each.name, None)
        if not isinstance(trigger, Trigger):
            continue
        label = f"{type(callback).__name__}({each.name}={trigger!r})"
        if trigger.priced and not priced:
            raise ArgumentError(
                f"{label}: the callback does not measure the cost of its work. Use an interval in steps or time, such "
                'as every(500) or every("10min").'
            )
        dead = [part for part in alternatives(trigger) if "step" not in part.places]
        if in_steps and dead:
            raise ArgumentError(
                f"{label}: {dead[0]!r} is due at the end of an epoch, and the callback works in steps. Use a trigger "
                "of steps, such as every(500), or every(0.1) for every tenth of the run."
            )


def _remedy(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if text.endswith(")"):
        return f"a text is not a trigger. Leave out the quotes: {text}."
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return f"{type(value).__name__} is not a trigger. {_EXAMPLES}"
    try:
        every(value)
    except ArgumentError as error:
        return f"it is not a trigger, and {error}" if text == "" else f"a text is not a trigger. {_EXAMPLES}"
    return f"it is not a trigger. Write every({value!r})."
