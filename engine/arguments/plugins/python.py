"""Write callbacks as Python code: the imports, and a list of calls."""

from __future__ import annotations

import dataclasses
import importlib
import textwrap
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from ....events.triggers import Both, Either, Trigger
from .build import parts_of, spec_of
from .options import given_options, set_apart
from .text import TRIGGERS

_ROOT = __name__.partition(".")[0]


def as_python(callbacks: Iterable[Any]) -> str:
    """Return Python code that builds callbacks: the imports, and a list named `callbacks`.

    If a constructor does not take an option such as `on_error`, an assignment after the list sets the option.

    Raises:
        ArgumentError: if a value cannot be written as text, such as a lambda or a dataset.
    """
    writer, calls, settings = _Writer(), [], []
    for place, callback in enumerate(callbacks):
        spec_of(callback)  # raises an error if it cannot be written
        given = {option.name: value for option, value in given_options(callback)}
        apart = set_apart(type(callback), given)
        settings += [f"callbacks[{place}].{name} = {value!r}\n" for name, value in apart.items()]
        calls.append(f"    {writer.call(callback, apart)},\n")
    return f"{writer.imports()}\ncallbacks = [\n{''.join(calls)}]\n{''.join(settings)}"


class _Writer:
    """Writes values as Python expressions, and collects the names that these expressions must import."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}
        """Module -> names to import from it."""

    def imports(self) -> str:
        """Return the import statements for the collected names."""
        lines = []
        for module, names in sorted(self.names.items(), key=lambda item: (item[0] != _ROOT, item[0])):
            line = f"from {module} import {', '.join(sorted(names))}"
            if len(line) > 100:
                listed = textwrap.indent(textwrap.fill(f"{', '.join(sorted(names))},", 100), "    ")
                line = f"from {module} import (\n{listed}\n)"
            lines.append(f"{line}\n")
        return "".join(lines)

    def name(self, value: Any) -> str:
        """Return the name of a class or function, and add the name to the imports."""
        root: Any = importlib.import_module(_ROOT)
        first = value.__qualname__.partition(".")[0]
        is_public = value.__module__.startswith(f"{_ROOT}.") and first in dir(root) and getattr(root, first) is value
        self.names.setdefault(_ROOT if is_public else value.__module__, set()).add(first)
        return str(value.__qualname__)

    def call(self, value: Any, without: Iterable[str] = ()) -> str:
        """Return the call that builds an object, such as `EMA(decay=0.9)`, without the options that `without` names."""
        given = [(option.name, each) for option, each in given_options(value) if option.name not in without]
        return f"{self.name(type(value))}({', '.join(f'{name}={self.value(each)}' for name, each in given)})"

    def value(self, value: Any) -> str:
        """Return a Python expression that creates a value, such as `Keep(last=2)`."""
        if isinstance(value, (type, FunctionType)):
            return self.name(value)
        if isinstance(value, Trigger):
            return self.trigger(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.value, value))}{',' * (len(value) == 1)})"
        if isinstance(value, (set, frozenset)):
            items = f"{{{', '.join(sorted(map(self.value, value)))}}}" if value else ""
            return items if items and isinstance(value, set) else f"{type(value).__name__}({items})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.value(key)}: {self.value(each)}" for key, each in value.items()) + "}"
        if isinstance(value, float) and repr(value) in ("nan", "inf", "-inf"):
            return f'float("{value}")'
        if dataclasses.is_dataclass(value):
            return self.call(value)
        if hasattr(value, "__fspath__"):
            return repr(value.__fspath__())
        return repr(getattr(value, "value", value))  # of an enum, its value

    def trigger(self, trigger: Trigger) -> str:
        """Return a Python expression that creates a trigger, such as `every(100) | at_end()`."""
        names = [repr(part).partition("(")[0] for part in parts_of(trigger)]
        if not isinstance(trigger, (Either, Both)) and names[0] not in TRIGGERS:
            return self.call(trigger)
        self.names.setdefault(_ROOT, set()).update(names)
        return repr(trigger)
