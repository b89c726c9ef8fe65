"""The seams: parts of a step that callbacks can replace. Each seam has a default.

Callbacks fill seams during `on_setup`. If two callbacks fill the same seam, `Seams.fill` raises an error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ..events.errors import SubscriptionError
from ..events.handlers import suspended_kind
from .optim.fused_step import GROUPED_TYPES, fused_step, has_own_step

LoadModel = Callable[[nn.Module, dict[str, torch.Tensor]], tuple[list[str], list[str]]]
Clip = Callable[[Optimizer, list[nn.Parameter], float], torch.Tensor]


class Scaler(Protocol):
    """The methods of torch.amp.GradScaler that a step uses."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor: ...
    def unscale_(self, optimizer: Optimizer) -> None: ...
    def get_scale(self) -> float: ...
    def step(self, optimizer: Optimizer) -> Any: ...
    def update(self, new_scale: float | None = None) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _wrap_model(model: nn.Module, optimizer: Optimizer | None) -> nn.Module:
    return model


_NOTHING = nullcontext()


def _synchronise(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return _NOTHING


def clip_gradients(optimizer: Optimizer, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Clip gradients to `max_norm` and return their norm before clipping. With `max_norm=0`, only measure the norm.

    If `max_norm` is above 0, gradients and norm equal the results of `torch.nn.utils.clip_grad_norm_` with norm type 2,
    bit for bit. If `_are_one_group` returns True, the function calls the kernels of torch directly, to save time.
    """
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    if not _are_one_group(gradients):
        return _clip_groups(parameters, gradients, max_norm)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm > 0:
        # `max_norm / (total + 1e-6)` gives the same bits. It takes longer, because its operator is a Python function.
        factor = (total + 1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0)
        torch._foreach_mul_(gradients, factor)
    return total


def _are_one_group(gradients: list[torch.Tensor]) -> bool:
    """Return whether `clip_gradients` can call the kernels of torch directly.

    The result is True if all gradients are dense, have `requires_grad=False`, and have the same dtype and device. The
    device must be a CPU or a CUDA device. For an empty list, the result is False.
    """
    if not gradients or any(gradient.is_sparse or gradient.requires_grad for gradient in gradients):
        return False
    groups = torch._C._group_tensors_by_device_and_dtype([[*gradients]], False)
    return len(groups) == 1 and gradients[0].device.type in GROUPED_TYPES


def _clip_groups(parameters: list[nn.Parameter], gradients: list[torch.Tensor], max_norm: float) -> torch.Tensor:
    total = nn.utils.get_total_norm([_dense(gradient) for gradient in gradients])
    if max_norm > 0:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return total


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    # A sparse gradient counts with the summed values of each index. All other entries are zero.
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _zero_grad(parameters: list[nn.Parameter]) -> None:
    # Has the same effect as `model.zero_grad()`, but need not collect the parameters in every step.
    for parameter in parameters:
        parameter.grad = None


def _call(make: Callable[[], Any]) -> Any:
    return make()


def _backward(loss: torch.Tensor, **options: Any) -> None:
    loss.backward(**options)  # type: ignore[no-untyped-call]


def _step(optimizer: Optimizer) -> bool:
    if fused_step(optimizer):
        return True
    groups = optimizer.param_groups
    if groups[-1]["params"] or has_own_step(optimizer):
        optimizer.step()
        return True
    # Without weight decay, the second group is empty. A pass over it takes as long as a quarter of a small update.
    optimizer.param_groups = [group for group in groups if group["params"]]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups
    return True


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    return optimizer.state_dict()


def _load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)


def _model_state(model: nn.Module) -> dict[str, torch.Tensor] | None:
    return None


def load_model(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Load weights by name. Return the names that `state` lacks, and the names that the model lacks."""
    missing, unexpected = model.load_state_dict(state, strict=False)
    return missing, unexpected


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameter name -> detached gradient. Parameters without a gradient are left out."""
    return {name: weight.grad.detach() for name, weight in model.named_parameters() if weight.grad is not None}


class Seams:
    """The functions that compute, clip and apply gradients, and that build and save model and optimizer."""

    prepare_model: Callable[[nn.Module], nn.Module]
    """Change the model before its optimizer is built. Default: no change."""
    make_optimizer: Callable[[Callable[[], Optimizer]], Optimizer]
    """Build the optimizer. Receives a function that builds the default optimizer. Default: call this function."""
    wrap_model: Callable[[nn.Module, Optimizer | None], nn.Module]
    """Wrap the model for training. Receives the model and the optimizer. Default: the model itself."""
    make_schedule: Callable[[Callable[[], Any]], Any]
    """Build the learning-rate schedule. Receives a function that builds the default schedule. Default: call this
    function."""
    synchronise: Callable[[nn.Module, bool], AbstractContextManager[Any]]
    """Return the context around forward and backward of a batch. Receives the model, and whether the batch is the last
    of its step. A wrapper such as DDP reduces gradients only in the last batch. Default: no effect."""
    train_batch: Callable[[Any], Any]
    """Return the function that runs forward and backward of a batch, for example one that skips batches. Receives the
    usual function, a `TrainingStep` of `engine/stepper.py`. Default: return the usual function."""
    backward: Callable[..., None]
    """Backpropagate a loss. Receives the loss and the options of `torch.Tensor.backward`. Default: call
    `loss.backward` with these options."""
    clip: Clip
    """Clip gradients to a norm and return the norm before clipping. Default: `clip_gradients`."""
    step: Callable[[Optimizer], bool]
    """Step the optimizer and return whether the weights changed. With a scaler, the scaler steps the optimizer instead.
    Default: `optimizer.step()`."""
    zero_grad: Callable[[list[nn.Parameter]], None]
    """Clear the gradients of parameters. Default: set them to None."""
    scaler: Scaler | None
    """Scales the loss, so that float16 gradients do not underflow. Default: None, which scales nothing."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """Return the autocast context for computations outside of the model's forward. Default: no autocast."""
    optimizer_state: Callable[[Optimizer], dict[str, Any]]
    """Return the full optimizer state. Called on every rank. Default: `state_dict()`."""
    load_optimizer: Callable[[Optimizer, dict[str, Any]], None]
    """Load a full optimizer state. Called on every rank. Default: `load_state_dict()`."""
    model_state: Callable[[nn.Module], dict[str, torch.Tensor] | None]
    """Return the full weights, or None if the model itself has the full weights. Called on every rank. Default:
    None."""
    full_gradients: Callable[[nn.Module], dict[str, torch.Tensor]]
    """Return the full gradients by name. Called on every rank, from `on_gradients` to `on_optimizer_step`. Default: the
    `.grad` of each parameter."""
    load_model: LoadModel
    """Load full weights and return missing and unexpected names. Called on every rank. Default: `load_model`."""

    def __init__(self) -> None:
        self._filled: dict[str, str] = {}
        self._closed: set[str] = set()
        self.prepare_model = lambda model: model
        self.make_optimizer = _call
        self.wrap_model = _wrap_model
        self.make_schedule = _call
        self.synchronise = _synchronise
        self.train_batch = lambda training_step: training_step
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
        self.full_gradients = full_gradients

    def fill(self, by: str, **fillings: Any) -> None:
        """Fill seams by name.

        Args:
            by: the id of the callback, for errors.
            **fillings: seam name -> the function or object to use.

        Raises:
            SubscriptionError: for an unknown seam, for a seam that is already filled or that the session called
                already, or for a function that a step cannot call.
        """
        for seam, filling in fillings.items():
            if seam not in Seams.__annotations__:
                raise SubscriptionError(
                    f"{by} fills the unknown seam {seam!r}. The seams are: {', '.join(Seams.__annotations__)}."
                )
            if seam in self._filled:
                raise SubscriptionError(
                    f"{by} and {self._filled[seam]} both fill the seam {seam}. Use only one of them, and fill a seam "
                    "once."
                )
            if seam in self._closed:
                raise SubscriptionError(
                    f"{by} fills the seam {seam} too late: the run called it already. Fill it in `on_setup`."
                )
            setattr(self, seam, _checked(by, seam, filling, default=getattr(self, seam)))
            self._filled[seam] = by

    def close(self, *seams: str) -> None:
        """Refuse later fillings of seams that a session calls only once, when it begins."""
        self._closed.update(seams)

    def filled_by(self, seam: str) -> str:
        """Return the id of the callback that filled a seam; an empty string if no callback filled the seam."""
        return self._filled.get(seam, "")


_RESULTS = {
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

_SCALER = tuple(name for name in vars(Scaler) if not name.startswith("_"))
"""The methods of a scaler."""


def _checked(by: str, seam: str, filling: Any, default: Any) -> Any:
    """Return the function that fills a seam. If it must not return None, wrap it in a check of its result.

    Raises:
        SubscriptionError: if a step cannot call the filling.
    """
    if seam == "scaler":
        if missing := [name for name in _SCALER if filling is not None and not hasattr(filling, name)]:
            raise SubscriptionError(f"{by} fills the seam scaler with {filling!r}, which has no {', '.join(missing)}.")
        return filling
    if problem := _problem(filling, default):
        raise SubscriptionError(f"{by} fills the seam {seam} with {filling!r}, {problem}.")
    return filling if seam not in _RESULTS else _refusing_none(by, seam, filling)


def _problem(filling: Any, default: Any) -> str:
    """Return why a step cannot call a filling as it calls the default; an empty string if it can."""
    if not callable(filling):
        return "which is not a function"
    if kind := suspended_kind(filling):
        return f"which is {kind}, so a call does not run its body"
    parameters = inspect.signature(default).parameters.values()
    arguments = [
        each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty
    ]
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
            raise SubscriptionError(f"The function of {by} for the seam {seam} returned None. Return {_RESULTS[seam]}.")
        return result

    return call
