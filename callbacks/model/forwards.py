"""Replace and restore the forward of a module, and recompute the activations of a forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ..base.module_changes import replace_attribute


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Replace the forward of a module, and return a function that restores the old forward.

    For the new forward, `inspect.signature` returns the signature of the old forward. Copies and pickles of the module
    have the old forward. Several replacements may be restored in any order.

    Args:
        module: the module.
        forward: the new forward.
    """
    return replace_attribute(module, "forward", update_wrapper(forward, module.forward, assigned=(), updated=()))


def recomputed(forward: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a forward that stores no activations. Backward calls `forward` again to compute the activations.

    Args:
        forward: the forward to wrap.
        **options: options of `torch.utils.checkpoint.checkpoint`. The default of `use_reentrant` is False.
    """
    options = {"use_reentrant": False, **options}

    # A function, because `module.compile()` of a program leaves out a module with a `functools.partial` as forward.
    def recomputing(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, **options, **kwargs)

    return recomputing
