"""Replace and restore the forward of a module, and recompute the activations of a forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
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


def wrap_forward(module: nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Replace the forward of a module by `wrap(forward)`, and return a function that restores the old forward.

    `DataParallel` copies the module to other GPUs. The copies get the new forward too, and each copy computes with its
    own weights. With `replace_forward`, the copies would compute with the weights of the original module.

    Args:
        module: the module.
        wrap: receives a forward and returns the new forward.
    """
    before = module.forward
    forward: Any = wrap(before)
    forward.of_copy = lambda copy: wrap(_of_copy(copy, before))
    return replace_forward(module, forward)


def use_own_weights(copy: nn.Module) -> None:
    """Let a copy of a module compute with its own weights, if the forward of the module was replaced.

    `DataParallel` makes such copies.
    """
    if "forward" in vars(copy):
        vars(copy)["forward"] = _of_copy(copy, copy.forward)


def _of_copy(copy: nn.Module, forward: Any) -> Callable[..., Any]:
    if hasattr(forward, "of_copy"):
        of_copy: Callable[..., Any] = forward.of_copy(copy)
        return of_copy
    own = isinstance(forward, MethodType) and isinstance(copy, type(forward.__self__))
    return MethodType(forward.__func__, copy) if own else forward


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
