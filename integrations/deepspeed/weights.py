"""The weights of a model that DeepSpeed trains: saved and loaded whole, and as somebody wrote them between steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import nn

AT_ONCE = 2**24
"""Numbers that are compared at once, so that this takes little memory."""


def whole_weights(model: nn.Module, keep: bool) -> dict[str, torch.Tensor] | None:
    """Return the weights on the host, whole, those that are trained in the float32 that the optimizer updates.

    Every process takes part; one that does not `keep` them returns None.
    """
    whole: dict[int, torch.Tensor] = {}
    named = model.state_dict(keep_vars=True)
    # A tensor with several names is gathered once, on every process, whether it keeps it or not.
    for tensor in {id(tensor): tensor for tensor in named.values()}.values():
        with _gathered(tensor):
            found = current_value(tensor)
            if keep:
                whole[id(tensor)] = found.to("cpu", copy=True)
    return {name: whole[id(tensor)] for name, tensor in named.items()} if keep else None


def current_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the model in the float32 of its optimizer's copy, but where somebody wrote to it, as it is.

    Every process takes part; a weight that is split over them is gathered for it.
    """
    copy = safe_get_full_fp32_param(tensor) if tensor.requires_grad else None
    held = tensor.detach()
    return held if copy is None else _unless_written(copy, held)


def load_weights(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Load whole weights, which every process has; return the names that are missing, and those not of the model.

    Raises:
        RuntimeError: for weights of another shape, by name.
    """
    named = model.state_dict(keep_vars=True)
    for name, tensor in named.items():
        if name in state:
            shape = shape_of(tensor)
            if shape != state[name].shape:
                raise RuntimeError(f"size mismatch for {name}: {[*state[name].shape]}, and the model has {[*shape]}.")
            with torch.no_grad(), _gathered(tensor, modified=True):
                tensor.copy_(state[name])
            if tensor.requires_grad:
                give_shares(tensor, state[name].float())
    return [name for name in named if name not in state], [name for name in state if name not in named]


@torch.no_grad()
def take_up_written(engine: Any) -> None:
    """Have the optimizer go on from what somebody wrote into the model's weights since its last step.

    It updates copies of them, and would write these over the weights. Where a copy, rounded as the weights are, is
    still equal, the copy is right, with all its digits.
    """
    for copies, weights in _copied(engine):
        for copy, held in zip(torch.split(copies, AT_ONCE), torch.split(weights, AT_ONCE)):
            copy.copy_(_unless_written(copy, held.to(copy.device)))


def _copied(engine: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Give what the optimizer of this process updates, with the part of the model's weights that it is a copy of."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage in (1, 2):
        parts = zip(
            optimizer.single_partition_of_fp32_groups,
            optimizer.parallel_partitioned_bit16_groups,
            optimizer.real_dp_process_group,
        )
        yield from ((copies, whole[dist.get_rank(group)]) for copies, whole, group in parts)
    elif stage == 3:
        for copies, weights in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_partitioned_groups_flat):
            # Those on a disk are not at hand, and of those without rounding there is no copy.
            if weights is not None and copies.numel() == weights.numel() and copies.data_ptr() != weights.data_ptr():
                yield copies, weights


def _unless_written(copy: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    return torch.where(copy.to(held.dtype) == held, copy, held.to(copy.dtype))


def link_in_order(engine: Any) -> None:
    """Have weights find their copies where gradients go round robin: DeepSpeed looks in the order of before that."""
    optimizer = engine.optimizer
    if getattr(optimizer, "round_robin_gradients", False):
        order, optimizer.bit16_groups = optimizer.bit16_groups, optimizer.round_robin_bit16_groups
        optimizer._link_all_hp_params()
        optimizer.bit16_groups = order


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Return the shape of a parameter, also of one that is split over the processes."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _gathered(tensor: torch.Tensor, modified: bool = False) -> Any:
    """Context in which a weight that is split over the processes is whole; it is a copy unless it is `modified`."""
    return deepspeed.zero.GatheredParameters([tensor], modifier_rank=0 if modified else None)


def give_shares(parameter: Any, value: torch.Tensor, key: str = "") -> None:
    """Give each process its share of a parameter's float32 values, or of the part `key` of its optimizer state."""
    value = value.to(parameter.device)
    if not hasattr(parameter, "ds_tensor"):
        _set_whole(parameter, value, key)
        return
    # Shares are of equal size, and the last one is filled up: DeepSpeed takes whole values only where that is not so.
    size = parameter.ds_tensor.numel()
    start = size * dist.get_rank(parameter.ds_process_group)
    share = value.flatten()[start : start + size]
    share = nn.functional.pad(share, (0, size - share.numel()))
    if key:
        safe_set_local_optimizer_state(parameter, share, key)
    else:
        safe_set_local_fp32_param(parameter, share)


def _set_whole(parameter: torch.Tensor, value: torch.Tensor, key: str) -> None:
    if key:
        safe_set_full_optimizer_state(parameter, value, key)
    else:
        safe_set_full_fp32_param(parameter, value)
