"""Checks of the object that a plugin offers: whether it can build a callback.

A plugin offers a callback class, a `functools.partial` of a callback class, or a function that returns callbacks.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from ....events.callback import Callback
from ....events.handlers import suspended_kind


def unbound(target: Any) -> tuple[Any, dict[str, Any]]:
    """Split a `functools.partial` of a class into the class and its options.

    For example, `partial(EMA, decay=0.9)` gives `(EMA, {"decay": 0.9})`. Any other target is returned unchanged, with
    an empty dict.
    """
    if not (isinstance(target, functools.partial) and isinstance(target.func, type)):
        return target, {}
    try:
        first = inspect.signature(target.func).bind_partial(*target.args).arguments
    except (TypeError, ValueError):
        return target, {}
    return target.func, {**first, **target.keywords}


def problem_of_offer(target: Any) -> str:
    """Check the object that a plugin offers.

    Returns:
        Why the object cannot build a callback, and a remedy; an empty string if the object can build one.
    """
    remedy = "Offer a callback class, or a function that returns callbacks"
    if isinstance(target, Callback) or not callable(target):
        return f"{target!r} is not a callback class or a function that returns callbacks. Offer one of these"
    if isinstance(unbound(target)[0], type):
        return ""
    name = getattr(target, "__qualname__", repr(target))
    if kind := suspended_kind(target):
        return f"{name} is {kind}, so calling it returns no callback. {remedy}, without `async` and without `yield`"
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return ""
    takes_one = any(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL) for each in parameters
    )
    return (
        ""
        if takes_one
        else f"{name} does not take the training arguments. Write them as its first parameter: `def build(args)`"
    )
