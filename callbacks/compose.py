"""Composing the list of a trainer's callbacks from its arguments and from what the user lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..engine.arguments import TrainingArguments
from ..events.callback import Callback
from ..events.errors import ArgumentError
from ..events.triggers import never
from .base.cadence import Cadence
from .defaults import DEFAULTS
from .hf import DefaultFlowCallback
from .stopping.stop_at_max_steps import StopAtMaxSteps


def compose(args: TrainingArguments, listed: Iterable[Any], found: Iterable[Any] = ()) -> list[Any]:
    """Return the callbacks of a trainer in the order in which they are attached.

    What the arguments spell comes first, then what was `found` (trackers, plugins), then what the user lists. A listed
    callback takes the place of the one of its class that the arguments spell (and of those of the classes that it is
    `instead_of`), unless it works beside it, as a logger with a prefix does.

    Raises:
        ArgumentError: if arguments were given that say otherwise than a listed callback, naming both.
    """
    explicit = [callback() if isinstance(callback, type) else callback for callback in listed]
    built = [callback for callback in (cls.from_arguments(args) for cls in DEFAULTS) if callback is not None]
    built += [callback for callback in found if callback is not None]
    _refuse_contradictions(args, built, explicit)
    kept = [callback for callback in built if not any(_replaces(other, callback) for other in explicit)]
    if any(isinstance(callback, DefaultFlowCallback) for callback in explicit):
        kept = [callback for callback in kept if not isinstance(callback, StopAtMaxSteps)]
        for callback in kept:
            if isinstance(callback, Cadence):
                callback.trigger = never()
    return kept + explicit


def _replaces(listed: Any, built: Any) -> bool:
    if getattr(listed, "aside", ""):
        return False
    return isinstance(listed, type(built)) or isinstance(built, getattr(listed, "instead_of", ()))


def _refuse_contradictions(args: TrainingArguments, built: list[Any], explicit: list[Any]) -> None:
    problems = []
    for callback in explicit:
        if getattr(callback, "aside", ""):
            continue  # it stands beside the one that the arguments spell
        spelled = [name for name in getattr(callback, "arguments", ()) if name in args.given]
        spells = type(callback).from_arguments(args) if spelled and isinstance(callback, Callback) else callback
        if not spelled or spells == callback:
            continue
        given = ", ".join(f"{name}={_plain(getattr(args, name))!r}" for name in spelled)
        problems.append(f"{callback!r} in the list, and {given} in the arguments, which spells {spells!r}")
    if problems:
        raise ArgumentError(
            "Callbacks and arguments contradict each other; leave out one of the two:\n- " + "\n- ".join(problems)
        )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
