"""Gradients, weights and optimizer states of which each process has a part: clipped, and gathered to be saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..engine.checkpoint.sharded import is_first_copy, is_split
from ..engine.ranks import Ranks
from ..engine.seams import Clip


def clip_parts(ranks: Ranks, device: torch.device) -> Clip:
    """Return clipping for gradients of which each process has a part.

    The squares of each gradient are added up in float64, and from there on it goes as with torch's clipping: the norm
    of the norms, in float32.

    Args:
        ranks: the processes.
        device: where a tensor is that is sent to the others.
    """

    @torch.no_grad()
    def clip(optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        parts = [local_part(gradient) for gradient in gradients]
        squares = [
            torch.linalg.vector_norm(part, dtype=torch.float64).square() * (not is_split(whole) or is_first_copy(whole))
            for whole, part in zip(gradients, parts)
        ]
        if not squares:
            return torch.zeros((), device=device)
        summed = ranks.sum(torch.stack([square.to(device) for square in squares]))
        total: torch.Tensor = torch.linalg.vector_norm(summed.sqrt().to(gradients[0].dtype))
        if max_norm > 0:
            scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
            for part in parts:
                part.mul_(scale.to(part.device))
        return total

    return clip


def local_part(tensor: Any) -> torch.Tensor:
    """Return this process's part of a tensor; all of it, if it is not split."""
    return tensor.to_local() if is_split(tensor) else tensor  # type: ignore[no-any-return]


def gathered(tensor: Any, device: torch.device, keep: bool) -> torch.Tensor | None:
    """Return a split tensor whole, in the host's memory; called on every process, and None where it is not kept."""
    if not is_split(tensor):
        return tensor.detach().to("cpu", copy=True) if keep else None
    placed = tensor.detach()
    if placed.to_local().device != device:
        placed = type(placed).from_local(
            *(placed.to_local().to(device), placed.device_mesh, placed.placements),
            run_check=False,
            shape=placed.shape,
            stride=placed.stride(),
        )
    whole = placed.full_tensor()
    return whole.to("cpu") if keep else None


def gathered_weights(device: torch.device, keep: bool) -> Callable[[nn.Module], dict[str, torch.Tensor]]:
    """Return what gathers a model's weights one by one, so that a process that does not keep them never has them all.

    Weights that are one under several names stay so.
    """

    def gather(model: nn.Module) -> dict[str, torch.Tensor]:
        seen: dict[Any, torch.Tensor | None] = {}
        found: dict[str, torch.Tensor] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor not in seen:
                seen[tensor] = gathered(tensor, device, keep)
            if (whole := seen[tensor]) is not None:
                found[name] = whole
        return found

    return gather


def gathered_state(device: torch.device, keep: bool) -> Callable[[Any], dict[str, Any]]:
    """Return what gathers the state of an optimizer."""

    def gather(optimizer: Any) -> dict[str, Any]:
        state: dict[str, Any] = optimizer.state_dict()
        parts = {
            number: {
                name: gathered(value, device, keep) if isinstance(value, torch.Tensor) else value
                for name, value in part.items()
            }
            for number, part in state["state"].items()
        }
        return {**state, "state": parts} if keep else {}

    return gather
