"""Build the callback list of a trainer from its arguments and the user's list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..engine.arguments import TrainingArguments
from ..events.callback import Callback
from ..events.composition import refuse_conflicts
from ..events.errors import ArgumentError
from ..events.triggers import never
from .base.cadence import Cadence
from .defaults import DEFAULTS
from .hf import DefaultFlowCallback
from .stopping.stop_at_max_steps import StopAtMaxSteps


def compose(args: TrainingArguments, listed: Iterable[Any], found: Iterable[Any] = ()) -> list[Any]:
    """Return the callbacks of a trainer in the order in which they are attached.

    The order is: callbacks that the arguments build, callbacks that were found, callbacks of the user's list. A listed
    callback replaces a built or found callback of its class or of a class in its `instead_of`. A variant, such as a
    `Log` with a prefix, replaces nothing.

    Args:
        args: the training arguments.
        listed: the user's list: callbacks, or classes of callbacks.
        found: trackers and plugins. None is skipped.

    Raises:
        ArgumentError: if a listed callback contradicts an argument that the user set, or if two callbacks exclude each
            other. It names both.
    """
    explicit = [callback() if isinstance(callback, type) else callback for callback in listed]
    built = [callback for callback in (cls.from_arguments(args) for cls in DEFAULTS) if callback is not None]
    built += [callback for callback in found if callback is not None]
    _refuse_contradictions(args, explicit)
    kept = [callback for callback in built if not any(_replaces(other, callback) for other in explicit)]
    if any(isinstance(callback, DefaultFlowCallback) for callback in explicit):
        kept = [callback for callback in kept if not isinstance(callback, StopAtMaxSteps)]
        for callback in kept:
            if isinstance(callback, Cadence):
                callback.trigger = never()
    refuse_conflicts(kept + explicit)
    return kept + explicit


def _replaces(listed: Any, built: Any) -> bool:
    if not isinstance(listed, Callback):
        return isinstance(listed, type(built))  # a callback of another library has no variant and no `instead_of`
    return not listed.variant and (isinstance(listed, type(built)) or isinstance(built, listed.instead_of))


def _refuse_contradictions(args: TrainingArguments, explicit: list[Any]) -> None:
    problems = []
    for callback in explicit:
        if not isinstance(callback, Callback) or callback.variant:
            continue  # a variant does not replace the callback that the arguments build
        spelled = [name for name in callback.arguments if name in args.given]
        spells = type(callback).from_arguments(args) if spelled else callback
        if not spelled or spells == callback:
            continue
        given = ", ".join(f"{name}={_plain(getattr(args, name))!r}" for name in spelled)
        problems.append(f"{callback!r} in the list, and {given} in the arguments, which builds {spells!r}")
    if problems:
        raise ArgumentError(
            "Callbacks contradict arguments. For each pair, leave out one of the two:\n- " + "\n- ".join(problems)
        )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
