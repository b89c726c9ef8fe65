"""Read the options of callbacks from text: find names, types and defaults, and convert values."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ....events.annotations import names_of_module, resolved
from ....events.callback import Callback
from ....events.errors import ArgumentError, nearest
from ....events.triggers import Trigger
from .._base import default_of
from ..cli.values import Unreadable, adapt, item_of, kind_of, members_of
from .offers import unbound
from .text import Call, as_text, value_of

REQUIRED: Any = inspect.Parameter.empty
"""The default of an option that must be given."""

OF_ALL = ("id", "on_error", "budget", "over_budget")
"""The options of every `Callback`."""

_REFERENCE = re.compile(r"[^\W\d]\w*(?:\.\w+)*:[^\W\d]\w*(?:\.\w+)*")


@dataclass(frozen=True)
class Option:
    """One option of a callback."""

    name: str
    hint: Any = Any
    """The type; `Any` if the option has no annotation, or if the annotation cannot be resolved."""
    default: Any = REQUIRED
    """The default; `REQUIRED` if the option must be given."""
    type_text: str = "Any"
    """The annotation, as text."""
    is_shown: bool = True
    """Whether callbacks as text, and plugin manifests, contain the option. False for secrets."""

    @property
    def is_required(self) -> bool:
        """Whether the option must be given."""
        return self.default is REQUIRED

    def convert(self, value: Any) -> Any:
        """Convert a value that was read from text to the type of the option.

        Raises:
            Unreadable: if the value cannot be converted to this type.
        """
        return converted(value, self.hint)


def options_of(target: Any) -> dict[str, Option]:
    """Return the options of a callback class, or of a function that builds callbacks, by name.

    The options of a dataclass are the fields that its constructor takes. The options of another class are the
    parameters of its constructor. The options of a function are all parameters except the first, which takes the
    training arguments. Every `Callback` also has the options in `OF_ALL`, such as `on_error`. A `functools.partial` of
    a class has the options of the class, with the bound values as defaults.
    """
    target, bound = unbound(target)
    is_class = isinstance(target, type)
    found: dict[str, Option] = {}
    if is_class and dataclasses.is_dataclass(target):
        hints = hints_of(target)
        for field in dataclasses.fields(target):
            if field.init:
                default = default_of(field)
                # A secret is a field with `compare=False` and `repr=False`.
                shown = field.compare or field.repr
                hint = hints.get(field.name, Any)
                text = _shown(field.type, hint)
                found[field.name] = Option(
                    field.name, hint, REQUIRED if default is dataclasses.MISSING else default, text, shown
                )
    else:
        found = _parameters(target)
    if is_class and issubclass(target, Callback):
        found.setdefault("id", Option("id", str | None, None, "str | None"))
        found.setdefault("on_error", Option("on_error", str, target.on_error, "str"))
        found.setdefault("budget", Option("budget", str | None, target.budget, "str | None"))
        found.setdefault("over_budget", Option("over_budget", str, target.over_budget, "str"))
    for name in bound.keys() & found.keys():
        found[name] = dataclasses.replace(found[name], default=bound[name])
    return found


def _parameters(target: Any) -> dict[str, Option]:
    is_class = isinstance(target, type)
    if is_class and target.__init__ is object.__init__:
        return {}
    hints = hints_of(target.__init__ if is_class else target)
    found = {}
    try:
        parameters = [*inspect.signature(target).parameters.values()]
    except (TypeError, ValueError):
        return {}
    for position, each in enumerate(parameters):
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL, each.POSITIONAL_ONLY):
            continue
        if not is_class and position == 0 and each.kind is not each.KEYWORD_ONLY:
            continue  # the training arguments
        hint = hints.get(each.name, Any)
        text = "Any" if each.annotation is each.empty else _shown(each.annotation, hint)
        found[each.name] = Option(each.name, hint, each.default, text)
    return found


def takes_any_option(target: Any) -> bool:
    """Return whether a constructor or function has a parameter like `**options`; True if its signature is unknown."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


def set_apart(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that the caller must set as attributes, because the constructor of `cls` does not take them.

    These are options that every `Callback` has, such as `on_error` (see `OF_ALL`). If `cls` is not a `Callback`, the
    result is empty.
    """
    if not issubclass(cls, Callback):
        return {}
    parameters = inspect.signature(cls).parameters
    return {name: options[name] for name in OF_ALL if name in options and name not in parameters}


def hints_of(target: Any) -> dict[str, Any]:
    """Return the annotated types of a class or function, by name of the field or parameter.

    If an annotation cannot be resolved, its type is `Any`.
    """
    try:
        return get_type_hints(target)
    except Exception:  # one name is enough, such as one that only type checkers import
        found: dict[str, Any] = {}
        for owner in reversed(getattr(target, "__mro__", [inspect.unwrap(target)])):
            names = getattr(owner, "__globals__", None) or names_of_module(getattr(owner, "__module__", ""))
            for name, annotation in getattr(owner, "__annotations__", {}).items():
                hint = resolved(annotation, names)
                found[name] = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        return found


def check_options(target: Any, given: Mapping[str, Any], label: str) -> tuple[dict[str, Any], list[str]]:
    """Convert the given options to their types. Return the converted options, and the problems.

    A problem is a text about an unknown option, about missing options, or about a value that cannot be converted.

    Args:
        target: the class or function that takes the options.
        given: the values as read from text, by name of the option.
        label: the name of the callback, for the messages.
    """
    known, problems, values = options_of(target), [], {}
    for name, value in given.items():
        if name not in known:
            if takes_any_option(target):
                values[name] = value
                continue
            listed = f" It has: {', '.join(known)}." if known else " It has none."
            problems.append(f"`{label}` has no option {name!r}{nearest(name, known)}{listed}")
            continue
        try:
            values[name] = known[name].convert(value)
        except (Unreadable, ArgumentError) as error:
            gap = "" if str(error).startswith((";", ".")) else ": "
            problems.append(f"`{label}`: {name} is {as_text(value)}{gap}{error}")
    missing = [name for name, option in known.items() if option.is_required and name not in given]
    if missing:
        problems.append(f"`{label}` needs {', '.join(f'`{name}`' for name in missing)}.")
    return values, problems


def converted(value: Any, hint: Any) -> Any:
    """Convert a value from a text to the type `hint` of an option.

    If the type is a dataclass, a `Call` such as `Keep(last=2)` becomes an instance of this dataclass. If the type is a
    trigger, a text becomes a trigger. If the type is a class or a callable, the text
    has the form `package.module:name`, and this object is imported.

    Raises:
        Unreadable: if the value cannot be converted.
    """
    resolved = _resolved(value, hint)
    if _has_call(resolved):
        raise Unreadable(f"; it takes {_kinds(hint)}.")
    return resolved if hint is Any else adapt(resolved, hint)


def _resolved(value: Any, hint: Any) -> Any:
    members = members_of(hint)
    if isinstance(value, Call):
        return _built(value, members)
    if isinstance(value, str):
        if any(_is(member, Trigger) for member in members) and str not in members:
            return _trigger(value)
        if any(_names_code(member) for member in members) and _REFERENCE.fullmatch(value):
            return imported(value)
    inner = next((member for member in members if kind_of(member) in (list, tuple, set, frozenset)), None)
    if isinstance(value, (list, tuple, set)) and inner is not None:
        return type(value)(_resolved(item, item_of(inner)) for item in value)
    if isinstance(value, dict):
        mapping = next((member for member in members if len(get_args(member)) == 2), None)
        item = get_args(mapping)[1] if mapping is not None else Any
        return {key: _resolved(each, item) for key, each in value.items()}
    return value


def _built(call: Call, members: list[Any]) -> Any:
    for member in members:
        if dataclasses.is_dataclass(member) and isinstance(member, type) and member.__name__ == call.name:
            values, problems = check_options(member, call.options, call.name)
            if problems:
                raise Unreadable(f"; {' '.join(problems)}")
            return member(**values)
    return call


def _has_call(value: Any) -> bool:
    if isinstance(value, (list, tuple, set)):
        return any(map(_has_call, value))
    return isinstance(value, Call) or (isinstance(value, dict) and any(map(_has_call, value.values())))


def _trigger(text: str) -> Any:
    """Build a trigger from a text: `every(100)`, or `package.module:Class(option=value)` for a trigger class."""
    name, _, rest = text.partition("(")
    if not _REFERENCE.fullmatch(name):
        return value_of(text)
    factory = imported(name)
    options = value_of(f"_({rest}" if rest else "_()")
    values, problems = check_options(factory, options.options, name)
    if problems:
        raise Unreadable(f"; {' '.join(problems)}")
    return factory(**values)


def imported(reference: str) -> Any:
    """Import and return the object of `package.module:name`.

    Raises:
        Unreadable: if the module cannot be imported, or does not have this name.
    """
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise Unreadable(f"; {module} cannot be imported: {error}") from error
    except AttributeError:
        known = [each for each in vars(found) if not each.startswith("_")]
        raise Unreadable(f"; {module} has no {name!r}{nearest(name, known)}") from None
    return found


def _is(member: Any, cls: type) -> bool:
    return isinstance(member, type) and issubclass(member, cls)


def _names_code(member: Any) -> bool:
    return kind_of(member) in (type, Callable)


def _kinds(hint: Any) -> str:
    return " or ".join(getattr(member, "__name__", str(member)) for member in members_of(hint))


def _shown(annotation: Any, hint: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__name__", None) or str(hint)


def given_options(callback: Any) -> Iterator[tuple[Option, Any]]:
    """Yield (option, value) for each option of a callback with a value other than its default, except secrets.

    Raises:
        ArgumentError: if the callback has no attribute with the name of an option.
    """
    for option in options_of(type(callback)).values():
        if not option.is_shown:
            continue
        if not hasattr(callback, option.name):
            raise ArgumentError(
                f"{type(callback).__name__} does not keep its option {option.name!r} as an attribute, so its value is "
                "unknown."
            )
        value = getattr(callback, option.name)
        if option.is_required or not _equal(value, option.default):
            yield option, value


def _equal(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))
