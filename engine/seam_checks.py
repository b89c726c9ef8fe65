"""Checks of the functions with which callbacks fill seams: their parameters and their results."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from ..events.errors import SubscriptionError
from ..events.handlers import suspended_kind

ARGUMENTS = {
    "prepare_model": ("model",),
    "make_optimizer": ("make",),
    "wrap_model": ("model", "optimizer"),
    "make_schedule": ("make",),
    "synchronise": ("model", "last"),
    "train_batch": ("training_step",),
    "backward": ("loss",),
    "clip": ("optimizer", "parameters", "max_norm"),
    "step": ("optimizer",),
    "zero_grad": ("parameters",),
    "autocast": (),
    "optimizer_state": ("optimizer",),
    "load_optimizer": ("optimizer", "state"),
    "model_state": ("model",),
    "full_gradients": ("model",),
    "load_model": ("model", "state"),
}
"""The arguments with which a step calls the function of each seam."""

RESULTS = {
    "prepare_model": "the model",
    "make_optimizer": "the optimizer",
    "wrap_model": "the model",
    "synchronise": "a context manager",
    "train_batch": "a function",
    "step": "True if the weights changed, and else False",
    "autocast": "a context manager",
    "optimizer_state": "a dict",
    "full_gradients": "a dict",
    "load_model": "the missing and the unexpected names",
}
"""The results of the seams whose function must not return None."""

SCALER = ("scale", "unscale_", "get_scale", "step", "update", "state_dict", "load_state_dict")
"""The methods of a scaler."""


def checked(by: str, seam: str, filling: Any) -> Any:
    """Return the function that fills a seam. If it must not return None, wrap it in a check of its result.

    Raises:
        SubscriptionError: if a step cannot call the filling.
    """
    if seam == "scaler":
        if missing := [name for name in SCALER if filling is not None and not hasattr(filling, name)]:
            raise SubscriptionError(f"{by} fills the seam scaler with {filling!r}, which has no {', '.join(missing)}.")
        return filling
    if problem := _problem(seam, filling):
        raise SubscriptionError(f"{by} fills the seam {seam} with {filling!r}, {problem}.")
    return filling if seam not in RESULTS else _refusing_none(by, seam, filling)


def _problem(seam: str, filling: Any) -> str:
    """Return why a step cannot call a filling; an empty string if it can."""
    arguments = ARGUMENTS[seam]
    if not callable(filling):
        return "which is not a function"
    if kind := suspended_kind(filling):
        return f"which is {kind}, so a call does not run its body"
    try:
        inspect.signature(filling).bind(*arguments)
    except ValueError:  # a function of C without a signature
        return ""
    except TypeError:
        return f"which must take the arguments ({', '.join(arguments)})"
    return ""


def _refusing_none(by: str, seam: str, filling: Any) -> Any:
    @functools.wraps(filling, updated=())
    def call(*arguments: Any) -> Any:
        result = filling(*arguments)
        if result is None:
            raise SubscriptionError(f"The function of {by} for the seam {seam} returned None. Return {RESULTS[seam]}.")
        return result

    return call
