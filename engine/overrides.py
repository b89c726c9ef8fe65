"""Methods of a subclass that were written for earlier trainers: they are called with what they take, and no more."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..events.errors import ModelError

Method = Callable[..., Any]

_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def adapt_overrides(cls: type) -> None:
    """Give the methods that `cls` overrides in an earlier form the one they are called in.

    Looked at once, when the class is made. A method that takes everything, with `**kwargs`, stays as it is.

    Sets `cls.loss_takes_items` where `cls` brings its own `compute_loss`: one that is not told the number of items
    returns a mean over its batch, and the trainer divides by the batches of the step.
    """
    for name, adapt in _ADAPTERS.items():
        method = _brought_by(cls, name)
        if method is not None:
            adapted = adapt(method, _names(method))
            if adapted is not method:
                setattr(cls, name, adapted)
    loss = _brought_by(cls, "compute_loss")
    if loss is not None:
        cls.loss_takes_items = _takes("num_items_in_batch", _names(loss))  # type: ignore[attr-defined]


def _brought_by(cls: type, name: str) -> Method | None:
    """Return the method that `cls`, or a class mixed into it, overrides; None where it inherits a trainer's."""
    for owner in cls.__mro__:
        if name in vars(owner):
            inherited = owner is not cls and hasattr(owner, "loss_takes_items")
            method = vars(owner)[name]
            return None if inherited or not inspect.isfunction(method) else method
    return None


def _names(method: Method) -> set[str]:
    """Return the names of a method's parameters; `*` and `**` stand for any more of them."""
    parameters = inspect.signature(method).parameters.values()
    return {_STARS.get(each.kind, each.name) for each in parameters}


def _takes(name: str, names: set[str]) -> bool:
    return name in names or "**" in names


def _compute_loss(method: Method, names: set[str]) -> Method:
    takes_outputs, takes_items = _takes("return_outputs", names), _takes("num_items_in_batch", names)
    if takes_outputs and takes_items:
        return method

    @functools.wraps(method)
    def compute_loss(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        options = {"num_items_in_batch": num_items_in_batch} if takes_items else {}
        if takes_outputs:
            return method(self, model, inputs, return_outputs=return_outputs, **options)
        if not return_outputs:
            return method(self, model, inputs, **options)
        with _outputs_of(model) as outputs:
            loss = method(self, model, inputs, **options)
        if not outputs:
            raise ModelError(
                f"{type(self).__name__}.compute_loss does not call the model it is given, so the predictions of this "
                "batch are unknown: give it the parameter `return_outputs`, and return `(loss, outputs)` if it is true."
            )
        return loss, _with_loss(loss, outputs[-1])

    return compute_loss


def _training_step(method: Method, names: set[str]) -> Method:
    if names & {"*", "**"} or len(names) > len(("self", "model", "inputs")):
        return method

    @functools.wraps(method)
    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return method(self, model, inputs)

    return training_step


def _prediction_step(method: Method, names: set[str]) -> Method:
    if _takes("ignore_keys", names):
        return method

    @functools.wraps(method)
    def prediction_step(self: Any, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        return method(self, model, inputs, prediction_loss_only)

    return prediction_step


def _with_loss(loss: Any, outputs: Any) -> Any:
    """Return a model's outputs; before a tuple of predictions comes the loss, as if the model had computed it."""
    computed = isinstance(outputs, tuple) and outputs and isinstance(outputs[0], torch.Tensor) and outputs[0].dim() == 0
    return (loss, *outputs) if isinstance(outputs, tuple) and not computed else outputs


@contextmanager
def _outputs_of(model: nn.Module) -> Iterator[list[Any]]:
    """Yield a list to which the model adds what each of its calls returns."""
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


_ADAPTERS: dict[str, Callable[[Method, set[str]], Method]] = {
    "compute_loss": _compute_loss,
    "training_step": _training_step,
    "prediction_step": _prediction_step,
}
"""Method -> what gives an earlier form of it today's."""
