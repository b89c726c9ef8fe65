"""Subject: a callback under test, with the options of its checks, such as whether it must be picklable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MICROSECONDS = 2000.0
"""The default `budget`: microseconds in handlers per step. A step of a real model takes far longer."""


@dataclass(frozen=True)
class Subject:
    """A callback under test, and what its author promises: for example, that the callback can be pickled.

    `parametrize_with_checks` takes a list of classes and factories. To set options for one of them, wrap it in a
    `Subject`.
    """

    make: Callable[..., Any]
    """A class, or a function that returns a new callback. A function with a parameter `folder` receives a folder to
    write to."""
    name: str = ""
    """The name in messages and test ids. Default: the name of the class or function. For a lambda: the class of its
    result."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Trainer` and `TrainingArguments` for the runs, such as a `model_init` that suits the callback."""
    budget: float | None = MICROSECONDS
    """The microseconds that the handlers may take per step, on average. None: no limit."""
    reporter: bool | None = None
    """Which handlers must only observe the run, without changing it. True: all. False: none. None: the handlers in
    MEASURE and REPORT."""
    prints: bool = False
    """Whether the callback may print."""
    writes_weights: bool = False
    """Whether handlers in MEASURE and REPORT may change weights, for example to evaluate averaged weights. True turns
    off the check `keeps_weights`."""
    promises: frozenset[str] = frozenset({"deepcopy", "pickle"})
    """The ways in which the callback can be copied before a run: `deepcopy`, `pickle`."""
    expected_failed: Mapping[str, str] = field(default_factory=dict)
    """Name of a check that the callback fails -> the reason. `check_callback` leaves this check out."""

    def build(self, folder: Path) -> Any:
        """Return a new callback from `make`. If `make` is a function with a parameter `folder`, pass `folder` to it."""
        return self.make(folder=folder) if self._takes_folder() else self.make()

    def _takes_folder(self) -> bool:
        if isinstance(self.make, type):
            return False
        try:
            return "folder" in inspect.signature(self.make).parameters
        except (TypeError, ValueError):
            return False


def as_subject(given: Any, **options: Any) -> Subject:
    """Return a `Subject` from a class, a factory or a subject.

    `options` are fields of the returned subject. An option that is None changes nothing.

    Raises:
        TypeError: for an instance of a callback. The checks need several new instances.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if isinstance(given, Subject):
        return replace(given, **chosen)
    if not callable(given) or any(name.startswith("on_") and name != "on_error" for name in vars(type(given))):
        raise TypeError(
            f"{given!r} is an instance, but the checks need several new ones. Give the class, or a function that "
            f"returns a new callback: lambda: {type(given).__name__}(...)."
        )
    return Subject(given, chosen.pop("name", "") or _name_of(given), **chosen)


def _name_of(make: Callable[..., Any]) -> str:
    """Return the name of a class or function. For a lambda, return the name of the class of its result."""
    name: str = getattr(make, "__name__", type(make).__name__)
    if name != "<lambda>":
        return name
    try:
        return type(make()).__name__
    except Exception:
        return "callback"  # the check `constructs` reports the error
