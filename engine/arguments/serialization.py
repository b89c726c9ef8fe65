"""What a checkpoint and a tracker write down of the arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ._base import default_of


def mask(name: str) -> str:
    """What stands for the value of a secret field; read back, it means that none is given."""
    return f"<{name.upper()}>"


@dataclass(kw_only=True, repr=False)
class Record:
    """A dataclass that knows which of its values somebody decided, and can be written as JSON."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `@dataclass` leaves a class its own repr, but replaces an inherited one, which would print secrets unmasked.
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def fallbacks(self) -> Mapping[str, Any]:
        """What a field left at its default stands for, where other fields decide that: name -> value."""
        return {}

    @property
    def given(self) -> frozenset[str]:
        """Names of the fields with another value than they would have had if left out."""
        fallbacks = self.fallbacks()
        defaults = {field.name: default_of(field) for field in fields(self)}
        return frozenset(
            name
            for name, default in defaults.items()
            if getattr(self, name) not in (default, fallbacks.get(name, default))
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field, enums as their strings; what ends in `_token` is a secret, and comes masked if it is given."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        return {
            name: mask(name) if name.endswith("_token") and value else value.value if isinstance(value, Enum) else value
            for name, value in values.items()
        }

    def to_json_string(self) -> str:
        """`to_dict()` as indented JSON; what JSON has no form for, as its `str`."""
        return json.dumps(self.to_dict(), indent=2, default=str)

    def __repr__(self) -> str:
        """The call that makes this instance, with what was given and nothing else."""
        given = self.given
        shown = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items() if name in given)
        return f"{type(self).__qualname__}({shown})"
