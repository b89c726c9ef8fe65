"""The step of a fused Adam or AdamW, with fewer Python calls than `optimizer.step()`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer
from torch.optim import optimizer as optimizer_module
from torch.utils import _contextlib

GROUPED_TYPES = ("cpu", "cuda")
"""The device types for which torch has one call for all tensors of a list, such as the norms or the update."""

_GLOBAL_HOOKS = (optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks)
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_OWN_CODE = (os.path.join(Path(optimizer_module.__file__).parent, ""), str(_contextlib.__file__))
"""The folder of the optimizers of torch, with a separator, and the file of decorators such as `torch.no_grad()`."""
_profiler_enabled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


def fused_step(optimizer: Optimizer) -> bool:
    """Make the step of a fused Adam or AdamW. The weights and the state equal those of `optimizer.step()`, bit for bit.

    The function calls the same kernels of torch with the same tensors, without the Python code around the kernels. For
    a small model, this code takes longer than the kernels.

    Args:
        optimizer: any optimizer.

    Returns:
        True if the function has made the step. False if the function does not support the optimizer: the function has
        changed nothing, and the caller must call `optimizer.step()`. Examples that are not supported: another class, a
        hook, a replaced `step`, `amsgrad`, a learning rate in a tensor, a sparse gradient, the first step, and a
        running profiler.
    """
    if type(optimizer) not in (Adam, AdamW) or has_own_step(optimizer) or _profiler_enabled():
        return False
    updates = []
    for group in optimizer.param_groups:
        tensors = _tensors_of(group, optimizer.state) if _is_supported(group) else None
        if tensors is None:
            return False
        grouped = torch._C._group_tensors_by_device_and_dtype(tensors, False) if tensors[0] else {}
        for (device, _), (lists, _) in grouped.items():
            if device.type not in GROUPED_TYPES or _is_capturing(device):
                return False
            updates.append((group, lists))
    with torch.no_grad():
        for group, lists in updates:
            _update(group, lists)
    vars(optimizer)["_opt_called"] = True  # without it, a schedule warns that the optimizer made no step
    return True


def has_own_step(optimizer: Optimizer) -> bool:
    """Return whether `optimizer.step()` may run code that is not torch's own, such as a hook or a replaced step.

    The result is also True if a GradScaler has set the attribute `grad_scale` or `found_inf` of the optimizer.
    """
    own = vars(optimizer)
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, *_GLOBAL_HOOKS)
    if any(hooks) or "grad_scale" in own or "found_inf" in own:
        return True
    cls = type(optimizer)
    return not (cls.__module__.startswith("torch.optim.") and _is_of_torch(own.get("step", cls.step)))


def _is_of_torch(step: Any) -> bool:
    return isinstance(step, FunctionType) and _all_of_torch(step)


@lru_cache(maxsize=64)
def _all_of_torch(step: FunctionType) -> bool:
    """Return whether a function, and each function that it wraps, is the code of torch's own optimizers.

    For a function that `torch.compile` returned, the result is False.
    """
    layer: Any = step
    while layer is not None:
        if not layer.__code__.co_filename.startswith(_OWN_CODE):
            return False
        layer = getattr(layer, "__wrapped__", None)
    return True


def _is_supported(group: dict[str, Any]) -> bool:
    """Return whether `fused_step` supports a parameter group.

    A supported group has `fused=True`. It has neither `amsgrad` nor `differentiable`, and `lr` and `betas` contain no
    tensor.
    """
    options = (group["lr"], *group["betas"])
    return bool(group["fused"]) and not (
        group["amsgrad"] or group["differentiable"] or any(isinstance(option, torch.Tensor) for option in options)
    )


def _tensors_of(group: dict[str, Any], states: dict[Any, Any]) -> list[list[Any]] | None:
    """Return the arguments of a fused kernel for the parameters that have a gradient.

    Args:
        group: the parameter group.
        states: the state of the optimizer: parameter -> its tensors by name.

    Returns:
        Six lists: parameters, gradients, first moments, second moments, an empty list, and step counts. The empty list
        is the argument for `amsgrad`. None if a tensor is of another class than `torch.Tensor` or `nn.Parameter`, if a
        gradient is sparse, or if a parameter has no state yet.
    """
    weights: list[Any] = []
    gradients: list[Any] = []
    found = []
    for weight in group["params"]:
        gradient = weight.grad
        if gradient is None:
            continue
        state = states.get(weight)
        if not state or type(weight) not in _PLAIN or type(gradient) is not torch.Tensor or gradient.is_sparse:
            return None
        weights.append(weight)
        gradients.append(gradient)
        found.append(state)
    first, second = [state["exp_avg"] for state in found], [state["exp_avg_sq"] for state in found]
    return [weights, gradients, first, second, [], [state["step"] for state in found]]


def _is_capturing(device: torch.device) -> bool:
    # torch refuses to capture this update in a CUDA graph. `optimizer.step()` raises its error.
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _update(group: dict[str, Any], lists: Any) -> None:
    """Update the tensors of one device and dtype, as torch does."""
    torch._foreach_add_(lists[-1], 1)
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    beta1, beta2 = group["betas"]
    kernel(
        *lists,
        amsgrad=False,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )
