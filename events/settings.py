"""Check the settings that every callback has, such as `stage`, `on_error` and `id`, before the engine reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .annotations import classes_of_field
from .callback import Callback
from .capabilities import Capability, Conflict
from .stages import Stage
from .trigger_fields import problems_of_triggers


class _Setting(NamedTuple):
    """How to check one setting: a function that tests the value, and a text for the error."""

    fits: Callable[[Any], bool]
    takes: str
    """The values that the setting takes, as text. It completes the sentence `It takes ...`."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _all_are(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, (tuple, list, set, frozenset)) and all(isinstance(each, kind) for each in value)
    )


def _is_ids(value: Any) -> bool:
    return _is_text(value) or _all_are(str)(value)


def _is_version(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_YES_OR_NO = "True or False"
_IDS = "the id of a callback, or a tuple of ids"

_OF_ALL_CLASSES = {
    "id": _Setting(lambda value: value is None or _is_text(value), "a text, the name of this callback, or None"),
    "before": _Setting(_is_ids, _IDS),
    "after": _Setting(_is_ids, _IDS),
}
"""The settings that the bus reads from every object with handlers, not only from a `Callback`."""

_SETTINGS = {
    **_OF_ALL_CLASSES,
    "local": _Setting(_is_bool, _YES_OR_NO),
    "previews": _Setting(_is_bool, _YES_OR_NO),
    "auto": _Setting(_is_bool, _YES_OR_NO),
    "arguments": _Setting(_all_are(str), "a tuple of names of arguments"),
    "instead_of": _Setting(_all_are(type), "a tuple of classes"),
    "state_version": _Setting(_is_version, "a whole number of 1 or more"),
    "capabilities": _Setting(_all_are(Capability), "a frozenset of `Capability` members"),
    "conflicts_with": _Setting(_all_are(Conflict), "a tuple of `Conflict(class, reason)`"),
    "variant": _Setting(_is_text, "a text"),
}

_TEXTS = ("id", "on_error", "over_budget")
"""The settings that are texts. If a dataclass declares such a setting as a field, the check also reads the annotation
of the field, because other instances may have other values."""

_METHODS = (
    *("state_dict", "load_state_dict", "migrate", "argument_overrides", "from_arguments", "default_id"),
    *("has", "conflict_with", "for_preview", "remove_from"),
)
"""The methods of `Callback` that the run calls. A class must not replace them by other values."""


def problems_of_settings(callback: object) -> list[str]:
    """Return a text for each setting of a callback that has a value of the wrong type.

    Such a value usually comes from a class that uses the name of a setting for something else. For example, the class
    has a field `id` that holds a number.
    """
    cls, own = type(callback), isinstance(callback, Callback)
    found = []
    for name, (fits, takes) in (_SETTINGS if own else _OF_ALL_CLASSES).items():
        value = getattr(callback, name, None)
        if not fits(value) and (own or value is not None):
            found.append(_problem(cls, name, value, takes))
    stage = getattr(callback, "stage", Stage.DECIDE)
    if not isinstance(stage, Stage):
        found.append(f"{cls.__name__}.stage is {stage!r}, not a Stage. Set it to one, such as Stage.REPORT.")
    if own:
        found += problems_of_triggers(callback)
        found += [
            _problem(cls, name, getattr(callback, name), "a method")
            for name in _METHODS
            if not callable(getattr(callback, name, None))
        ]
        found += [
            f"{cls.__name__}.{name} is declared as {text}. It takes a text.{_RENAME.format(name=name)}"
            for name in _TEXTS
            if (text := _declared_as_other(cls, name)) and not any(f".{name} is " in problem for problem in found)
        ]
    return found


_RENAME = " Every callback has the setting `{name}`: if you mean something else, rename yours."


def meaning(callback: object, name: str) -> str:
    """Return the advice to rename the field or method `name`, because `name` is also the name of a setting.

    The advice is the last sentence of an error. The result is empty if the callback has no field or method `name`.
    """
    is_own = name in getattr(type(callback), "__dataclass_fields__", ()) or callable(getattr(callback, name, None))
    return _RENAME.format(name=name) if is_own else ""


def _problem(cls: type, name: str, value: Any, takes: str) -> str:
    return f"{cls.__name__}.{name} is {value!r}. It takes {takes}.{_RENAME.format(name=name)}"


def _declared_as_other(cls: type, name: str) -> str:
    """Return the annotation of the field `name` of a dataclass if the field cannot hold a text; otherwise "".

    For example, the result is `int` for the field `id: int`. This field is an error, because the setting `id` must be a
    text.
    """
    declared = getattr(cls, "__dataclass_fields__", {})
    classes = classes_of_field(cls, name) if name in declared else None
    if not classes or any(issubclass(str, each) or issubclass(each, str) for each in classes):
        return ""
    annotation = declared[name].type
    return str(getattr(annotation, "__name__", annotation))
