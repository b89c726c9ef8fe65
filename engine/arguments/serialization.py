"""Write the arguments as dicts, JSON and repr, with secrets masked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch

from ._base import default_of


def mask(name: str) -> str:
    """Return the placeholder text that replaces the value of a secret field in files.

    `name` is the name of the field. If arguments are read from a file with the placeholder, the field gets its default.
    """
    return f"<{name.upper()}>"


def plain(value: Any) -> Any:
    """Convert enums, dtypes and configuration objects to values for JSON.

    An enum becomes its value, a dtype its name, such as `float32`, and an object with a method `to_dict` a dict. Items
    of lists and values of dicts are converted too. Any other value is returned unchanged.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.to_dict() if is_configuration(value) else value


def is_configuration(value: Any) -> bool:
    """Return whether a value is a configuration object: an instance with a method `to_dict`."""
    return not isinstance(value, type) and callable(getattr(value, "to_dict", None))


@dataclass(kw_only=True, repr=False)
class Serializable:
    """A dataclass that lists the fields with a value other than the default, and that converts to JSON."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `@dataclass` keeps a repr that the class itself defines, but replaces an inherited one. The generated repr
        # would print secrets.
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def fallbacks(self) -> Mapping[str, Any]:
        """Return the defaults that depend on other fields: field name -> default."""
        return {}

    @property
    def given(self) -> frozenset[str]:
        """Names of the fields with a value other than the default. A field that is set to its default is left out."""
        fallbacks = self.fallbacks()
        defaults = {field.name: default_of(field) for field in fields(self)}
        return frozenset(
            name
            for name, default in defaults.items()
            if getattr(self, name) not in (default, fallbacks.get(name, default))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values: enums and dtypes become strings, configuration objects become dicts.

        Fields that end in `_token` are secrets and are masked if set.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        return {
            name: mask(name) if name.endswith("_token") and value else plain(value) for name, value in values.items()
        }

    def to_json_string(self) -> str:
        """Return `to_dict()` as indented JSON. Values that JSON cannot express become their `str`."""
        return json.dumps(self.to_dict(), indent=2, default=str)

    def __repr__(self) -> str:
        """Return the call that creates this instance, with the fields in `given`. Secrets are masked."""
        given = self.given
        shown = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items() if name in given)
        return f"{type(self).__qualname__}({shown})"
