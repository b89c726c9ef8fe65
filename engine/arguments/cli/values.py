"""Convert words of the command line, and values of configuration files, to the type of a field."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import reduce
from inspect import isclass
from operator import or_
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ....events.errors import ArgumentError, nearest
from .._checks import fits
from ..unique_keys import DuplicateKey, parse_json

NONE = type(None)
TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
FALSE = frozenset({"false", "f", "no", "n", "off", "0"})
ANYTHING: tuple[Any, ...] = (Any, object)
SEVERAL = (list, tuple, set, frozenset, Sequence, Collection, Iterable)


class Unreadable(Exception):
    """A value does not fit the type of its field.

    The message is the end of an error text, such as `; it takes an int.` in "`max_steps` is 'many'; it takes an int."
    """


def read(words: Sequence[str], hint: Any) -> Any:
    """Convert the words after a command-line flag to the type of a field.

    Args:
        words: The words. One word, unless `hint` is a collection, such as a list or a tuple.
        hint: The type of the field.

    Raises:
        Unreadable: The words are not a value of that type.
    """
    members = members_of(hint)
    several = [member for member in members if kind_of(member) in SEVERAL]
    single = [member for member in members if member not in several]
    if not several:
        return _read_word(words[0], members)
    if len(words) == 1 and single:
        with suppress(Unreadable):
            return _read_word(words[0], single)
    return _collected((read([word], item_of(several[0])) for word in words), several[0])


def adapt(value: Any, hint: Any) -> Any:
    """Convert a value from a configuration file to the type `hint`.

    If the value already has this type, return it unchanged. Otherwise, parse a string like a word of a command line,
    and convert each value of a list or mapping.

    Raises:
        Unreadable: The value cannot be converted.
    """
    if _fits(value, hint):
        return value
    members = members_of(hint)
    if isinstance(value, Mapping) and (records := [member for member in members if _is_record(member)]):
        return _record(value, records[0])
    word = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)  # YAML reads yes and no as bool
    for member in members:
        if kind_of(member) in SEVERAL and isinstance(value, (list, tuple)):
            hints = _items_of(member, len(value))
            return _collected((adapt(item, hint) for item, hint in zip(value, hints)), member)
        if isinstance(value, Mapping) and _is_mapping(member) and get_args(member):
            return {key: adapt(each, get_args(member)[1]) for key, each in value.items()}
        if word in (choices := choices_of(member)):
            return choices[word]
    if isinstance(value, str):
        return read([value], hint)
    if isinstance(value, os.PathLike) and str in members:
        return os.fspath(value)
    raise Unreadable(_remedy(word, members))


def among(value: Any, choices: Iterable[Any]) -> Any:
    """Check that `value` is one of `choices` or None, and return it. If `value` is a list, check each item.

    Raises:
        Unreadable: The value is not a choice. The message suggests the nearest choice.
    """
    known = [*choices]
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if item is not None and item not in known:
            raise Unreadable(_known(str(item), known))
    return value


def members_of(hint: Any) -> list[Any]:
    """Return the member types of a union. For any other type, return a list with this type."""
    if get_origin(hint) in (Union, types.UnionType):
        return [inner for member in get_args(hint) for inner in members_of(member)]
    return [hint]


def kind_of(hint: Any) -> Any:
    """Return a type without its brackets: `list` for `list[int]`. A type without brackets is returned unchanged."""
    return get_origin(hint) or hint


def item_of(hint: Any) -> Any:
    """Return the item type of a `list[...]` or `tuple[...]`; `Any` for a type without brackets.

    For a tuple with several item types, return their union.
    """
    items = tuple(item for item in get_args(hint) if item is not Ellipsis)
    return reduce(or_, items) if items else Any


def choices_of(hint: Any) -> dict[str, Any]:
    """Return the members of an Enum or a Literal by their text; an empty dict for other types."""
    if get_origin(hint) is Literal:
        return {str(choice): choice for choice in get_args(hint)}
    if isclass(hint) and issubclass(hint, Enum):
        return {str(choice.value): choice for choice in hint}
    return {}


def shown_type(hint: Any) -> str:
    """Return the type of a command-line value in the form that `--help` shows: `float`, `int|str`."""
    names = []
    for member in members_of(hint):
        if choices := choices_of(member):
            names += [type(getattr(choice, "value", choice)).__name__ for choice in choices.values()]
        elif kind_of(member) in SEVERAL:
            names.append(shown_type(item_of(member)))
        elif _is_object(member):
            names.append("JSON")
        elif member is not NONE:
            names.append("str" if member in ANYTHING else getattr(member, "__name__", str(member)))
    return "|".join(dict.fromkeys(names))


def shown_value(value: Any) -> str:
    """Return `value` as a user writes it on a command line, such as `true` for True."""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    if isinstance(value, (list, tuple, set, frozenset)):
        return " ".join(shown_value(item) for item in value) or "empty"
    return str(value) if str(value) else "''"


def _read_word(word: str, members: Sequence[Any]) -> Any:
    if word.lstrip().startswith("{") and (mappings := [member for member in members if _is_object(member)]):
        members = mappings  # invalid JSON is an error, not the name of a file
    alone = {*members} <= {bool, NONE}
    for member in sorted(members, key=_rank):
        try:
            return _parse(word, member, alone)
        except ArgumentError:
            raise  # raised by the class of a JSON object
        except (ValueError, TypeError, ArithmeticError, LookupError):
            continue
    raise Unreadable(_remedy(word, members))


def _parse(word: str, member: Any, alone: bool) -> Any:
    """Convert `word` to the type `member`, and return the value.

    `alone` is True if the field takes only a bool or None. In this case, words such as `yes` and `1` are bools. If
    `alone` is False, only `true` and `false` are bools.

    Raises:
        ArithmeticError, LookupError, TypeError, ValueError: The word is not a value of this type.
        Unreadable: The word is JSON for a dataclass, and the fields or the types of their values are wrong.
        ArgumentError: The word is JSON for a dataclass. The dataclass refuses the values, or has an annotation that
            cannot be resolved.
    """
    if choices := choices_of(member):
        return choices[word]
    if member is NONE:
        return {"none": None, "null": None}[word.lower()]
    if member is bool:
        words = dict.fromkeys(TRUE, True) | dict.fromkeys(FALSE, False) if alone else {"true": True, "false": False}
        return words[word.lower()]
    if _is_object(member):
        try:
            found = parse_json(word)
        except DuplicateKey as error:
            raise Unreadable(f"; {error}.") from error
        if not isinstance(found, dict):
            raise ValueError(word)
        return _record(found, member) if _is_record(member) else found
    kind = kind_of(member)
    return kind(word) if isinstance(kind, type) and kind not in ANYTHING else word


def _rank(member: Any) -> int:
    """Return the sort key that decides in which order the types of a union are tried.

    Strict types come first, because `str` accepts every text.
    """
    order = [NONE, bool, int, float, dict]
    if choices_of(member):
        return -1
    kind = kind_of(member)
    return order.index(kind) if kind in order else len(order) + (kind in (str, *ANYTHING))


def _fits(value: Any, hint: Any) -> bool:
    kind = kind_of(hint)
    if len(members := members_of(hint)) > 1:
        return any(_fits(value, member) for member in members)
    if kind is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if kind in SEVERAL:
        concrete = (list, tuple) if kind is list else kind
        if not isinstance(value, concrete) or isinstance(value, str):
            return False
        hints = get_args(hint) if _is_fixed(hint) else [item_of(hint)] * len(value)
        return len(hints) == len(value) and all(map(_fits, value, hints))
    if _is_mapping(hint) and len(get_args(hint)) == 2:
        return isinstance(value, Mapping) and all(_fits(each, get_args(hint)[1]) for each in value.values())
    return not isclass(kind) or fits(value, kind)


def _is_fixed(hint: Any) -> bool:
    """Return whether a type is a tuple of fixed length, with a type for each item, such as `tuple[int, str]`."""
    return kind_of(hint) is tuple and bool(get_args(hint)) and Ellipsis not in get_args(hint)


def _items_of(hint: Any, count: int) -> Sequence[Any]:
    """Return the type of each item of a list or tuple with `count` items.

    Raises:
        Unreadable: `hint` is a tuple type of another length.
    """
    if not _is_fixed(hint):
        return [item_of(hint)] * count
    if len(get_args(hint)) != count:
        raise Unreadable(f"; it takes {len(get_args(hint))} values.")
    return get_args(hint)


def _is_mapping(member: Any) -> bool:
    kind = kind_of(member)
    return isclass(kind) and issubclass(kind, Mapping)


def _is_record(member: Any) -> bool:
    return isclass(member) and is_dataclass(member)


def _is_object(member: Any) -> bool:
    return _is_mapping(member) or _is_record(member)


def hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, by name.

    Raises:
        ArgumentError: An annotation cannot be resolved, because its module does not have the type at run time.
    """
    try:
        return get_type_hints(cls)
    except Exception as error:  # an annotation is code, so it may raise any error
        raise ArgumentError(
            f"{cls.__qualname__} has an annotation that cannot be resolved: {error}; "
            "define the class, and the types it names, at the top level of a module."
        ) from error


def _record(values: Mapping[str, Any], cls: Any) -> Any:
    """Return an instance of the dataclass `cls`. The values, by field name, are converted to the types of the fields.

    Raises:
        Unreadable: A field is unknown, a required field is missing, or a value does not fit.
        ArgumentError: The dataclass refuses the values, or has an annotation that cannot be resolved.
    """
    known = {field.name: field for field in fields(cls) if field.init}
    hints = hints_of(cls)
    for name in values:
        if name not in known:
            raise Unreadable(f"; {cls.__name__} has no field {str(name)!r}{nearest(str(name), known)}")
    found = {}
    for name, field in known.items():
        if name in values:
            try:
                found[name] = adapt(values[name], hints[name])
            except Unreadable as error:
                raise Unreadable(f"; its field {name!r} is {values[name]!r}{error}") from None
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Unreadable(f"; {cls.__name__} needs the field {name!r}.")
    return cls(**found)


def _collected(items: Iterable[Any], member: Any) -> Any:
    kind, inner, found = kind_of(member), get_args(member), [*items]
    if kind is tuple and inner and Ellipsis not in inner and len(found) != len(inner):
        raise Unreadable(f"; it takes {len(inner)} values.")
    return kind(found) if kind in (tuple, set, frozenset) else found


def _remedy(word: str, members: Sequence[Any]) -> str:
    choices = {shown: choice for member in members for shown, choice in choices_of(member).items()}
    if choices:
        return _known(word, choices)
    return f"; it takes {' or '.join(dict.fromkeys(_described(member) for member in members))}."


def _known(word: str, known: Iterable[Any]) -> str:
    names = [shown_value(choice) for choice in known]
    return f"{nearest(word, names)} Known: {', '.join(repr(name) for name in names)}."


def _described(member: Any) -> str:
    if kind_of(member) in SEVERAL:
        return f"several of {shown_type(item_of(member))}"
    if _is_record(member):
        return f"a JSON object with the fields {', '.join(field.name for field in fields(member) if field.init)}"
    if _is_mapping(member):
        return "a JSON object"
    return {bool: "true or false", NONE: "none", int: "an int", float: "a float", str: "text"}.get(
        member, shown_type(member)
    )
