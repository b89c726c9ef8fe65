"""Replace the forward of a module, and restore it."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from torch import nn


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Replace the forward of a module, and return a function that restores it.

    `inspect.signature` returns the signature of the old forward for the new one. If you replace a forward several
    times, restore the last replacement first.

    Args:
        module: the module.
        forward: the new forward.
    """
    own = module.__dict__.get("forward")
    module.forward = update_wrapper(forward, module.forward, assigned=(), updated=())

    def undo() -> None:
        if own is None:
            del module.forward
        else:
            module.forward = own

    return undo
