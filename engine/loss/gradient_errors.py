"""Refuse a loss that is not a tensor. Explain errors of torch in backward: no gradient, or a graph used before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...events.errors import ModelError, SubscriptionError

if TYPE_CHECKING:
    from ..run import Run

_NO_GRADIENT = "does not require grad and does not have a grad_fn"
"""A part of the message of torch about a loss that depends on no weight."""

_SECOND_TIME = "backward through the graph a second time"
"""A part of the message of torch about a graph that an earlier backward has freed."""


def gradient_note(run: Run, error: BaseException) -> str:
    """Return a note about an error in backward: the usual causes and their remedies.

    The note is empty if the error has another cause.
    """
    message = str(error)
    if not isinstance(error, RuntimeError):
        return ""
    if _NO_GRADIENT in message and not any(weight.requires_grad for weight in run.model.parameters()):
        return "All weights of the model are frozen. Set `requires_grad = True` for the weights to train."
    if _NO_GRADIENT in message:
        return (
            "The loss depends on no trainable weight. Usual causes in forward or in the loss function: `.detach()`, "
            "`.item()`, `.numpy()`, `torch.tensor(value)`, `torch.no_grad()`, `argmax`, or a loss from constants. "
            "Compute the loss from the outputs of the layers, without these calls."
        )
    if _SECOND_TIME in message:
        return (
            "A tensor of an earlier step is part of the loss, such as a hidden state that the model keeps in an "
            "attribute. Detach it at the end of forward: `self.state = state.detach()`."
        )
    return ""


def check_loss(loss: Any) -> None:
    """Raise an error if the result of `compute_loss`, such as the result of a criterion, is not a tensor."""
    if not isinstance(loss, torch.Tensor):
        raise ModelError(
            f"The loss is {_shown(loss)}, not a tensor. Return the tensor from the criterion, from `compute_loss_func` "
            "or from `compute_loss`, without `.item()` or `float()`."
        )


def check_replaced_loss(loss: Any) -> None:
    """Raise an error if the value that a handler of `on_loss` assigned to `run.loss` is not a scalar tensor."""
    if not isinstance(loss, torch.Tensor) or loss.dim():
        raise SubscriptionError(
            f"A handler of `on_loss` set `run.loss` to {_shown(loss)}. Set it to a scalar tensor, such as "
            "`run.loss = 2 * run.loss`."
        )


def _shown(loss: Any) -> str:
    if isinstance(loss, torch.Tensor):
        return f"a tensor of shape {tuple(loss.shape)}"
    return repr(loss) if loss is None or isinstance(loss, (int, float)) else f"a {type(loss).__name__}"
