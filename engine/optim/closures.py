"""The refusal of optimizers whose `step` requires a closure, such as `torch.optim.LBFGS`."""

from __future__ import annotations

import inspect
from typing import Any


def closure_refusal(optimizer: Any) -> str:
    """Return an error text with the remedy if the `step` of an optimizer requires a closure; otherwise an empty string.

    The trainer computes loss and gradients once per step. An optimizer such as `torch.optim.LBFGS` computes loss and
    gradients several times per step. The events of a step, clipping and gradient accumulation do not work with such an
    optimizer.

    Args:
        optimizer: an optimizer or an optimizer class. For None, the result is an empty string.
    """
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    step = getattr(kind, "step", None)
    if step is None:
        return ""
    try:
        parameters = list(inspect.signature(step).parameters.values())[1:]
    except (TypeError, ValueError):  # a C function
        return ""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]
    if not required:
        return ""
    return (
        f"{kind.__name__}.step requires {', '.join(map(repr, required))}: it computes the loss several times per step, "
        "and the Trainer computes it once. Use an optimizer without a closure, such as `optim='adamw_torch'`, or write "
        f"the loop of {kind.__name__} yourself."
    )
