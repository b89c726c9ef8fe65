"""MissingLogits: the placeholder for logits that `ChunkedCrossEntropy` does not compute."""

from __future__ import annotations

from typing import Any

import torch

from ...events.errors import ModelError

_ALLOWED = ("__get__", "size", "dim", "numel", "ndimension", "is_floating_point", "__len__")
"""The names of functions that do not read the values of the tensor. `__get__` reads an attribute, such as `shape`."""


class MissingLogits(torch.Tensor):
    """The result of an output layer if `ChunkedCrossEntropy` computes the loss from the input of this layer.

    The tensor has the shape of the logits, but no values. Each operation that needs values raises a `ModelError`.
    """

    hidden: torch.Tensor
    """The input of the output layer."""
    model: str
    """The name of the class of the model."""

    @staticmethod
    def of(hidden: torch.Tensor, classes: int, model: str) -> MissingLogits:
        """Return a placeholder that has the shape of the logits of an output layer, but no values.

        Args:
            hidden: the input of the output layer, of shape (..., width).
            classes: the last dimension of the logits.
            model: the name of the class of the model, for error messages.
        """
        build: Any = torch.Tensor._make_wrapper_subclass
        made: MissingLogits = build(
            MissingLogits, (*hidden.shape[:-1], classes), dtype=hidden.dtype, device=hidden.device
        )
        made.hidden, made.model = hidden, model
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in _ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs or {})
        models = [each.model for each in args if isinstance(each, MissingLogits)]
        raise changed_logits(models[0] if models else "the model")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise changed_logits("the model")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"MissingLogits(shape={tuple(self.shape)})"


def changed_logits(model: str) -> ModelError:
    """Return the error for code that reads or changes logits, which `ChunkedCrossEntropy` does not compute.

    `model` is the name of the model's class.
    """
    return ModelError(
        f"ChunkedCrossEntropy computes no logits, but {model} or a hook changes or reads them, for example for a soft "
        "cap, a scale or a loss of its own. Leave the callback out."
    )
