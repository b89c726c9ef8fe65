"""Functions that clip and gather sharded gradients, and gather weights and optimizer state for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...engine.checkpoint.format.sharded import gathered, is_first_copy, is_split, whole_on
from ...engine.distributed.ranks import Ranks
from ...engine.seams import Clip


def clip_shards(ranks: Ranks, device: torch.device, exact: bool) -> Clip:
    """Return a function that clips sharded gradients to a maximum norm, and returns their norm before the clipping.

    Every rank must call the returned function.

    Args:
        ranks: the ranks that hold the shards.
        device: the device of the tensors that the ranks send.
        exact: True: gather each gradient, and compute the norm of the whole gradient, as torch does without sharding.
            False: sum the squares of the shards in float64. The norm may then differ from torch in the last digit.
    """

    def norms_of_shards(gradients: list[Any]) -> torch.Tensor:
        squares = [
            torch.linalg.vector_norm(local_part(whole), dtype=torch.float64).square()
            * (not is_split(whole) or is_first_copy(whole))
            for whole in gradients
        ]
        summed = ranks.sum(torch.stack([square.to(device) for square in squares]))
        return summed.sqrt().to(gradients[0].dtype)

    def norms_of_wholes(gradients: list[Any]) -> torch.Tensor:
        return torch.stack([torch.linalg.vector_norm(whole_on(gradient, device)) for gradient in gradients])

    @torch.no_grad()
    def clip(optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        if not gradients:
            return torch.zeros((), device=device)
        norms = norms_of_wholes(gradients) if exact else norms_of_shards(gradients)
        total: torch.Tensor = torch.linalg.vector_norm(norms)
        if max_norm > 0:
            scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
            for part in map(local_part, gradients):
                part.mul_(scale.to(part.device))
        return total

    return clip


def local_part(tensor: Any) -> torch.Tensor:
    """Return this rank's shard of a tensor; the tensor itself if it is not sharded."""
    local: torch.Tensor = tensor.to_local() if is_split(tensor) else tensor
    return local


def gathered_gradients(device: torch.device) -> Callable[[nn.Module], dict[str, torch.Tensor]]:
    """Return a function that gathers the gradients of a model on a device: name of the weight -> full gradient.

    Every rank must call the returned function. It gathers one gradient at a time.
    """

    def gather(model: nn.Module) -> dict[str, torch.Tensor]:
        return {
            name: whole_on(weight.grad, device) for name, weight in model.named_parameters() if weight.grad is not None
        }

    return gather


def gathered_weights(device: torch.device, keep: bool) -> Callable[[nn.Module], dict[str, torch.Tensor]]:
    """Return a function that gathers the weights of a model, and returns a dict: name -> full weight.

    Every rank must call the returned function. It gathers one weight at a time. Tied weights stay one tensor.

    Args:
        device: the device of the tensors that the ranks send.
        keep: if True, the returned function returns the gathered weights on this rank. If False, the returned function
            returns an empty dict, and this rank never holds all weights.
    """

    def gather(model: nn.Module) -> dict[str, torch.Tensor]:
        seen: dict[Any, torch.Tensor | None] = {}
        found: dict[str, torch.Tensor] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not isinstance(tensor, torch.Tensor):  # the extra state of a module
                if keep:
                    found[name] = tensor
                continue
            if tensor not in seen:
                seen[tensor] = gathered(tensor, device, keep)
            if (whole := seen[tensor]) is not None:
                found[name] = whole
        return found

    return gather


def gathered_state(device: torch.device, keep: bool) -> Callable[[Any], dict[str, Any]]:
    """Return a function that gathers the full state dict of an optimizer. Every rank must call the returned function.

    Args:
        device: the device of the tensors that the ranks send.
        keep: if True, the returned function returns the gathered state on this rank. If False, the returned function
            returns an empty dict.
    """

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
