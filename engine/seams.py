"""Seams: the places where a callback may change how a step is made, each with what happens when nobody does.

Callbacks fill them during `on_setup`. A seam that only one can fill refuses a second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ..events.errors import SubscriptionError

LoadModel = Callable[[nn.Module, dict[str, torch.Tensor]], tuple[list[str], list[str]]]
Clip = Callable[[Optimizer, list[nn.Parameter], float], torch.Tensor]


class Scaler(Protocol):
    """What torch.amp.GradScaler does, as far as a step needs it."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor: ...
    def unscale_(self, optimizer: Optimizer) -> None: ...
    def get_scale(self) -> float: ...
    def step(self, optimizer: Optimizer) -> Any: ...
    def update(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _wrap_model(model: nn.Module, optimizer: Optimizer | None) -> nn.Module:
    return model


_NOTHING = nullcontext()


def _synchronise(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return _NOTHING


def clip_gradients(optimizer: Optimizer, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Clip to `max_norm` and return the norm before; 0 only measures."""
    total = nn.utils.get_total_norm([_dense(weight.grad) for weight in parameters if weight.grad is not None])
    if max_norm > 0:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return total


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    # Of a sparse one, its values at each place added up: all that is not zero.
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _zero_grad(parameters: list[nn.Parameter]) -> None:
    # What `model.zero_grad()` does, without looking for the parameters in every step.
    for parameter in parameters:
        parameter.grad = None


def _call(make: Callable[[], Any]) -> Any:
    return make()


def _backward(loss: torch.Tensor, **options: Any) -> None:
    loss.backward(**options)  # type: ignore[no-untyped-call]


def _step(optimizer: Optimizer) -> bool:
    optimizer.step()
    return True


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    return optimizer.state_dict()


def _load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)


def _model_state(model: nn.Module) -> dict[str, torch.Tensor] | None:
    return None


def load_model(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Load weights by name, and return the names that are missing, and those that the model does not have."""
    missing, unexpected = model.load_state_dict(state, strict=False)
    return missing, unexpected


class Seams:
    """How a run makes, clips and applies gradients, and how its model and optimizer are built and saved."""

    prepare_model: Callable[[nn.Module], nn.Module]
    """Change the model in place, before its optimizer is made. Default: leave it."""
    make_optimizer: Callable[[Callable[[], Optimizer]], Optimizer]
    """Return the optimizer to train with, given what makes that of the arguments. Default: make that."""
    wrap_model: Callable[[nn.Module, Optimizer | None], nn.Module]
    """Wrap the model for training. Default: the model itself."""
    make_schedule: Callable[[Callable[[], Any]], Any]
    """Return the learning-rate schedule, given what makes that of the arguments. Default: make that."""
    synchronise: Callable[[nn.Module, bool], AbstractContextManager[Any]]
    """Context around forward and backward of a batch; `last` says that its gradients complete a step."""
    backward: Callable[..., None]
    """Backpropagate a loss, with options for `torch.Tensor.backward`. Default: that."""
    clip: Clip
    """Clip gradients to a norm and return the norm they had. Default: torch's."""
    step: Callable[[Optimizer], bool]
    """Step the optimizer and say whether the weights moved, where no scaler does it. Default: its `step()`."""
    zero_grad: Callable[[list[nn.Parameter]], None]
    """Clear gradients. Default: set them to None."""
    scaler: Scaler | None
    """Scales the loss so that half-precision gradients do not vanish. Default: none."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """Context in which steps compute what they compute outside of the model's forward. Default: none."""
    optimizer_state: Callable[[Optimizer], dict[str, Any]]
    """Return the whole state of the optimizer, called on every process. Default: its `state_dict()`."""
    load_optimizer: Callable[[Optimizer, dict[str, Any]], None]
    """Load such a state, on every process. Default: its `load_state_dict()`."""
    model_state: Callable[[nn.Module], dict[str, torch.Tensor] | None]
    """Return the whole weights of the model, or None for what it has, called on every process. Default: None."""
    load_model: LoadModel
    """Load whole weights, on every process; return the missing and the unexpected names. Default: what torch does."""

    def __init__(self) -> None:
        self._filled: dict[str, str] = {}
        self.prepare_model = lambda model: model
        self.make_optimizer = _call
        self.wrap_model = _wrap_model
        self.make_schedule = _call
        self.synchronise = _synchronise
        self.backward = _backward
        self.clip = clip_gradients
        self.step = _step
        self.zero_grad = _zero_grad
        self.scaler = None
        self.autocast = nullcontext
        self.optimizer_state = _optimizer_state
        self.load_optimizer = _load_optimizer
        self.model_state = _model_state
        self.load_model = load_model

    def fill(self, by: str, **fillings: Any) -> None:
        """Fill seams by name.

        Args:
            by: who fills them, for the error that a second one meets.
            **fillings: what to put into each.

        Raises:
            SubscriptionError: for a seam that does not exist, or that another callback filled.
        """
        for seam, filling in fillings.items():
            if seam not in Seams.__annotations__:
                raise SubscriptionError(
                    f"{by} fills the seam {seam!r}, which is none of {', '.join(Seams.__annotations__)}."
                )
            if seam in self._filled:
                raise SubscriptionError(
                    f"{by} and {self._filled[seam]} both want to decide {seam}: use one of the two."
                )
            self._filled[seam] = by
            setattr(self, seam, filling)

    def filled_by(self, seam: str) -> str:
        """Return who filled a seam, or an empty string."""
        return self._filled.get(seam, "")
