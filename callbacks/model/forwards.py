"""Standing in for a module's forward, and giving it back."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from torch import nn


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Have a module run `forward` instead of its own, however and by whom it is called; return what undoes it.

    It is read as having the signature of the module's own. Several may stand in for each other, as long as the last is
    undone first.
    """
    own = module.__dict__.get("forward")
    module.forward = update_wrapper(forward, module.forward, assigned=(), updated=())

    def undo() -> None:
        if own is None:
            del module.forward
        else:
            module.forward = own

    return undo
