"""Adafactor: Adam's second moment kept as one row and one column per matrix (arXiv:1804.04235)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...events.errors import ArgumentError

_NARROW = (torch.float16, torch.bfloat16)


class Adafactor(Optimizer):
    """The optimizer of Shazeer and Stern (arXiv:1804.04235), with the numbers of transformers' implementation.

    A parameter of shape (..., n, m) keeps a second moment of n + m numbers per matrix instead of n * m (algorithm 4);
    vectors and scalars keep theirs whole (algorithm 5). float16 and bfloat16 parameters are updated in float32 and
    have float32 state. `optim="adafactor"` means `scale_parameter=False, relative_step=False` and the trainer's own
    learning rate; the defaults below are the paper's, which choose the step size themselves.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate; None (default) with `relative_step`.
        eps: (added to the squared gradients, lowest parameter scale): eps1 and eps2 of the paper.
        clip_threshold: Root mean square an update may have before the learning rate is applied (d of the paper).
        decay_rate: Exponent c of the second moment's decay `1 - t ** c`.
        beta1: Decay of the first moment; None (default) keeps none.
        weight_decay: Decoupled: the weight loses `weight_decay * lr` of itself at each update.
        scale_parameter: Multiply the step size by the root mean square of the parameter (section 8).
        relative_step: Use `min(0.01, 1 / sqrt(t))` as the step size.
        warmup_init: Use `1e-6 * t` in place of that 0.01.

    Raises:
        ArgumentError: `lr` together with `relative_step`, neither of them, or `warmup_init` without `relative_step`.
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
            raise ArgumentError(f"Adafactor: lr={lr} has no effect with relative_step=True; set relative_step=False")
        if lr is None and not relative_step:
            raise ArgumentError("Adafactor: relative_step=False needs a learning rate, lr=...")
        if warmup_init and not relative_step:
            raise ArgumentError("Adafactor: warmup_init=True has no effect with relative_step=False")
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
        """Update every parameter that has a gradient; return what `closure`, if given, returns.

        Raises:
            RuntimeError: a gradient is sparse.
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
        """Load a state; unlike torch's, this keeps float32 moments of float16 and bfloat16 parameters in float32."""
        super().load_state_dict(state_dict)
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"]):
            for parameter, key in zip(group["params"], saved_group["params"]):
                if parameter.dtype in _NARROW:
                    for name, value in state_dict["state"].get(key, {}).items():
                        if isinstance(value, Tensor):
                            self.state[parameter][name] = value.to(parameter.device)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        grad, weight = _wide(parameter.grad), _wide(parameter)
        if grad.is_sparse:
            raise RuntimeError("Adafactor cannot use sparse gradients; build the embedding with sparse=False")
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
        # Multiplying by (1 - weight_decay * rate) would be the same formula and other bits.
        if group["weight_decay"] != 0:
            weight.add_(weight, alpha=-group["weight_decay"] * rate)
        weight.sub_(update)
        if weight is not parameter:
            parameter.copy_(weight)


def _wide(tensor: Any) -> Tensor:
    wide: Tensor = tensor.float() if tensor.dtype in _NARROW else tensor
    return wide


def _rms(tensor: Tensor) -> Tensor:
    """The root mean square: one number, on the tensor's device."""
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
    """Take the squared gradient into the second moment (which keeps the share `keep`), and return grad / its root."""
    square = grad.square().add_(eps)
    if "exp_avg_sq" in state:
        moment: Tensor = state["exp_avg_sq"].mul_(keep).add_(square, alpha=1.0 - keep)
        return moment.rsqrt().mul_(grad)
    row: Tensor = state["exp_avg_sq_row"].mul_(keep).add_(square.mean(dim=-1), alpha=1.0 - keep)
    column: Tensor = state["exp_avg_sq_col"].mul_(keep).add_(square.mean(dim=-2), alpha=1.0 - keep)
    # The rank-1 estimate is row * column / mean(row); its root is taken factor by factor, so that no n * m matrix
    # but the update itself is made.
    row_root = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return torch.mul(row_root, column.unsqueeze(-2).rsqrt()).mul_(grad)


def _step_size(group: dict[str, Any], step: int, weight: Tensor) -> Any:
    """alpha of the paper: a float, or a one-element tensor where the parameter's own scale enters."""
    rate = group["lr"]
    if group["relative_step"]:
        rate = min(1e-6 * step if group["warmup_init"] else 1e-2, 1.0 / math.sqrt(step))
    if group["scale_parameter"]:
        return max(group["eps"][1], _rms(weight)) * rate
    return rate
