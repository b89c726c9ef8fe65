"""Clip gradients element by element, or relative to the norms of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.errors import ArgumentError
from ...events.stages import Stage
from ..parallel.split_weights import local_part

_DEEPSPEED = Conflict(
    Capability.DEEPSPEED,
    "DeepSpeed holds the gradients and clips them itself, by their norm. Leave it out, and set `max_grad_norm`.",
)


@dataclass
class ClipByValue(Callback):
    """Limits each element of the gradients to [-limit, limit] before each update of the weights.

    The callback clips before the run clips by norm. To clip by value only, as Lightning does with
    `gradient_clip_algorithm="value"`, set `max_grad_norm=0`. The logged gradient norm is measured after the clipping by
    value.

    Raises:
        ArgumentError: if `limit` is not above 0.
    """

    stage = Stage.ACT
    conflicts_with = (_DEEPSPEED,)

    limit: float = 1.0
    """The largest absolute value of an element."""

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ArgumentError(f"ClipByValue(limit={self.limit}): set a limit above 0.")

    @torch.no_grad()
    def on_gradients(self, optimizer: Optimizer) -> None:
        gradients = [gradient for _, gradient in pairs_of(optimizer)]
        if gradients:
            torch._foreach_clamp_min_(gradients, -self.limit)
            torch._foreach_clamp_max_(gradients, self.limit)


@dataclass
class ClipAdaptively(Callback):
    """Limits the norm of each row of a gradient, relative to the norm of the weights in this row.

    A row is one index of the first dimension. A vector is one row. After the clipping, each row has norm(gradient) <=
    factor * max(norm(weights), eps). The source of this formula is arXiv:2102.06171, adaptive gradient clipping. The
    callback clips before the run clips by norm. To turn the clipping by norm off, set `max_grad_norm=0`.

    Raises:
        ArgumentError: if `factor` or `eps` is not above 0.
    """

    stage = Stage.ACT
    conflicts_with = (
        _DEEPSPEED,
        Conflict(Capability.SHARDS_MODEL, "it compares norms of full weights. Leave it out, and set `max_grad_norm`."),
    )

    factor: float = 0.01
    """The largest norm of a row of the gradient, divided by the norm of the weights in this row."""
    eps: float = 1e-3
    """The smallest norm of weights in the formula. A smaller norm counts as `eps`, so weights of zero can grow."""

    def __post_init__(self) -> None:
        for name in ("factor", "eps"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"ClipAdaptively({name}={getattr(self, name)}): set a number above 0.")

    @torch.no_grad()
    def on_gradients(self, optimizer: Optimizer) -> None:
        for weight, gradient in pairs_of(optimizer):
            gradient.mul_(adaptive_scale(weight, gradient, self.factor, self.eps))


def adaptive_scale(weight: torch.Tensor, gradient: torch.Tensor, factor: float, eps: float) -> torch.Tensor:
    """Return the numbers by which `ClipAdaptively` multiplies the rows of a gradient; 1 for a row within its limit.

    The result has one number per row, and broadcasts to the gradient. The limit of a row is factor * max(n, eps), where
    n is the norm of the weights in this row.
    """
    most, norm = unit_norms(weight).clamp(min=eps) * factor, unit_norms(gradient)
    return torch.where(norm > most, most / norm.clamp(min=1e-6), torch.ones_like(norm))


def unit_norms(tensor: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row, in a shape that broadcasts to the tensor.

    A row is one index of the first dimension. A vector is one row.
    """
    inner = tuple(range(1, tensor.dim()))
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=inner or None, keepdim=bool(inner))
    return norms


def pairs_of(optimizer: Optimizer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each weight of an optimizer together with its gradient. Leave out weights without a gradient.

    For a sharded weight, the pair has this rank's shard of the weight and of the gradient.
    """
    weights: list[Any] = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [(local_part(weight), local_part(weight.grad)) for weight in weights if weight.grad is not None]
