"""Adafactor: an optimizer that stores one row and one column of second moments per matrix (arXiv:1804.04235)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...events.errors import ArgumentError

_HALF = (torch.float16, torch.bfloat16)


class Adafactor(Optimizer):
    """The optimizer of Shazeer and Stern (arXiv:1804.04235). Results equal transformers' `Adafactor` bit for bit.

    A parameter of shape (..., n, m) has n + m second moments per matrix instead of n * m (algorithm 4). Vectors and
    scalars have full second moments (algorithm 5). float16 and bfloat16 parameters are updated in float32 and have
    float32 state. `optim="adafactor"` sets `scale_parameter=False, relative_step=False` and uses the trainer's learning
    rate. The defaults below come from the paper. With these defaults, Adafactor computes the step size itself.

    In the formulas below, `t` counts the updates of a parameter: 1 in the first update.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate. Must be None (the default) if `relative_step` is True, and a number if it is False.
        eps: eps1 and eps2 of the paper: the term added to squared gradients, and the lowest parameter scale.
        clip_threshold: Largest root mean square of an update before the learning rate applies (d of the paper).
        decay_rate: Exponent c of the decay rate `1 - t ** c` of the second moment.
        beta1: Decay rate of the first moment. None (the default): no first moment.
        weight_decay: Decoupled weight decay: each step subtracts `weight_decay` times the step size times the weight.
        scale_parameter: Multiply the step size by the root mean square of the parameter, at least eps2 (section 8).
        relative_step: Use the step size `min(0.01, 1 / sqrt(t))` instead of `lr`.
        warmup_init: With `relative_step`: use `1e-6 * t` instead of 0.01 in the formula of the step size.

    Raises:
        ArgumentError: Both or neither of `lr` and `relative_step` are set, or `warmup_init` without `relative_step`.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        if lr is not None and relative_step:
            raise ArgumentError(f"Adafactor: lr={lr} has no effect with relative_step=True. Set relative_step=False.")
        if lr is None and not relative_step:
            raise ArgumentError("Adafactor: relative_step=False needs a learning rate. Set lr.")
        if warmup_init and not relative_step:
            raise ArgumentError(
                "Adafactor: warmup_init=True has no effect with relative_step=False. Set relative_step=True."
            )
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient.

        Args:
            closure: A function that computes the loss and the gradients again. Default: none.

        Returns:
            The loss of `closure`; None without a closure.

        Raises:
            RuntimeError: A gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state. The moments of float16 and bfloat16 parameters stay in float32, unlike in `torch.optim`."""
        super().load_state_dict(state_dict)
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"]):
            for parameter, key in zip(group["params"], saved_group["params"]):
                if parameter.dtype in _HALF:
                    for name, value in state_dict["state"].get(key, {}).items():
                        if isinstance(value, Tensor):
                            self.state[parameter][name] = value.to(parameter.device)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        grad, weight = _as_float32(parameter.grad), _as_float32(parameter)
        if grad.is_sparse:
            raise RuntimeError("Adafactor cannot use sparse gradients. Build the embedding with sparse=False.")
        state = self.state[parameter]
        if not state:
            state.update(_new_state(grad, group))
        state["step"] += 1
        rate = _step_size(group, state["step"], weight)

        keep = 1.0 - math.pow(state["step"], group["decay_rate"])
        update = _normalize(grad, state, keep, group["eps"][0])
        update.div_((_rms(update) / group["clip_threshold"]).clamp_(min=1.0))
        update.mul_(rate)
        if group["beta1"] is not None:
            update = state["exp_avg"].mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        # Multiplying by (1 - weight_decay * rate) is the same formula, but rounds differently from transformers.
        if group["weight_decay"] != 0:
            weight.add_(weight, alpha=-group["weight_decay"] * rate)
        weight.sub_(update)
        if weight is not parameter:
            parameter.copy_(weight)


def _as_float32(tensor: Any) -> Tensor:
    full: Tensor = tensor.float() if tensor.dtype in _HALF else tensor
    return full


def _rms(tensor: Tensor) -> Tensor:
    """Return the root mean square of a tensor as a one-element tensor on the same device."""
    rms: Tensor = torch.linalg.vector_norm(tensor) / tensor.numel() ** 0.5
    return rms


def _new_state(grad: Tensor, group: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {"step": 0}
    if group["beta1"] is not None:
        state["exp_avg"] = torch.zeros_like(grad)
    if grad.dim() >= 2:
        state["exp_avg_sq_row"] = grad.new_zeros(grad.shape[:-1])
        state["exp_avg_sq_col"] = grad.new_zeros(grad.shape[:-2] + grad.shape[-1:])
    else:
        state["exp_avg_sq"] = torch.zeros_like(grad)
    return state


def _normalize(grad: Tensor, state: dict[str, Any], keep: float, eps: float) -> Tensor:
    """Update the second moment with decay rate `keep`, and return `grad` divided by the square root of the moment."""
    square = grad.square().add_(eps)
    if "exp_avg_sq" in state:
        moment: Tensor = state["exp_avg_sq"].mul_(keep).add_(square, alpha=1.0 - keep)
        return moment.rsqrt().mul_(grad)
    row: Tensor = state["exp_avg_sq_row"].mul_(keep).add_(square.mean(dim=-1), alpha=1.0 - keep)
    column: Tensor = state["exp_avg_sq_col"].mul_(keep).add_(square.mean(dim=-2), alpha=1.0 - keep)
    # The rank-1 estimate is row * column / mean(row). The root of each factor is taken on its own, so that no n * m
    # matrix is needed besides the update.
    row_root = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return torch.mul(row_root, column.unsqueeze(-2).rsqrt()).mul_(grad)


def _step_size(group: dict[str, Any], step: int, weight: Tensor) -> Any:
    """Return the step size, alpha of arXiv:1804.04235: a float, or a one-element tensor with `scale_parameter`."""
    rate = group["lr"]
    if group["relative_step"]:
        rate = min(1e-6 * step if group["warmup_init"] else 1e-2, 1.0 / math.sqrt(step))
    if group["scale_parameter"]:
        return max(group["eps"][1], _rms(weight)) * rate
    return rate
