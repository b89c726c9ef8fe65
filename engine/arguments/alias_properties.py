"""Aliases as attributes of the arguments. Reading or writing an alias reads or writes the argument."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ...events.errors import ArgumentError
from ._base import default_of
from .aliases import ALIASES, Alias, not_an_argument

_PACKAGE = __name__.partition(".")[0]


class AliasProperties:
    """A base class of the arguments that checks assignments, and translates fields with the name of an alias.

    For example, a subclass may declare a field `evaluation_strategy`. Its value is copied to `eval_strategy`.
    """

    _set: Any
    _check_assigned: Any

    def __setattr__(self, name: str, value: object) -> None:
        """Set an argument or an alias.

        Raises:
            ArgumentError: The name is not an argument, or the value is invalid. Names that start with an underscore are
                allowed. In a subclass that a user defines, any name is allowed.
        """
        if not name.startswith("_") and not hasattr(type(self), name):
            fields_of = type(self).__dataclass_fields__  # type: ignore[attr-defined]
            if name not in fields_of and type(self).__module__.partition(".")[0] == _PACKAGE:
                raise ArgumentError(f"{not_an_argument(name, [*fields_of, *ALIASES])} It has no effect.")
        if "_checked" in vars(self):
            self._check_assigned(name, value)
        super().__setattr__(name, value)

    def _translate_alias_fields(self) -> None:
        """Copy values from the fields that a subclass declares under the name of an alias.

        For example, the value of a field `evaluation_strategy` is copied to the argument `eval_strategy`.

        Raises:
            ArgumentError: If an alias and its argument are both set, to different values.
        """
        known: Mapping[str, Any] = {field.name: field for field in fields(self)}  # type: ignore[arg-type]
        for name in known.keys() & _PROPERTIES:
            alias, value = ALIASES[name], getattr(self, name)
            translated = None if value is None or isinstance(value, property) else alias.translate(value)
            if not alias.new or translated is None:
                continue
            now, default = getattr(self, alias.new), default_of(known[alias.new])
            if now not in (default, translated) and value != default_of(known[name]):
                raise ArgumentError(f"`{name}` is {value!r}, but `{alias.new}` is {now!r}; set only `{alias.new}`.")
            if now == default:
                setattr(self, alias.new, translated)


_PROPERTIES: set[str] = set()
"""The aliases that are properties of the arguments."""


def add_alias_properties(cls: type) -> None:
    """Add a property for each alias to the class of the arguments.

    An existing property with the same name is not replaced.
    """
    for name, alias in ALIASES.items():
        if not hasattr(cls, name):
            _PROPERTIES.add(name)
            setattr(cls, name, _property(name, alias))


def _property(name: str, alias: Alias) -> property:
    def read(args: Any) -> Any:
        if not alias.new:
            return alias.values[0]  # the only behavior that is left
        value = getattr(args, alias.new)
        if not _is_switch(alias):
            return value
        on = alias.translate(True)
        return set(on) <= set(value) if isinstance(on, list) else value == on

    def write(args: Any, value: Any) -> None:
        if alias.values and value is not None and value not in alias.values:
            raise ArgumentError(f"`{name}` is {value!r}; it takes {', '.join(map(repr, alias.values))}.")
        if alias.outdated:
            text = f"`{name}` is now `{alias.new}`." if alias.new else f"`{name}` has no effect; remove it."
            warnings.warn(text, FutureWarning, stacklevel=2)
        if not alias.new:
            return
        if _is_switch(alias):
            if bool(value) == read(args):
                return
            field = type(args).__dataclass_fields__[alias.new]
            args._set(**{alias.new: alias.translate(True) if value else default_of(field)})
        else:
            args._set(**{alias.new: alias.translate(value)})

    doc = f"Alias of `{alias.new}`." if alias.new else "Has no effect."
    return property(read, write, doc=doc)


def _is_switch(alias: Alias) -> bool:
    return bool(alias.new) and alias.values == (True, False)
