"""Save, load and change the weights of a model that DeepSpeed trains, as full tensors.

The master weights are float32 copies of the trainable weights. The optimizer updates these copies. With stage 3, only
half-precision weights have master weights. With stages 1 and 2, float32 weights have master weights too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import nn

from ...callbacks.precision.master_weights import copy_writes, with_writes


def gather_weights(model: nn.Module, keep: bool) -> dict[str, torch.Tensor] | None:
    """Gather the full weights in host memory. Trainable weights have the values of their master weights.

    Every rank must call this function. A rank with `keep=False` returns None.
    """
    full: dict[int, torch.Tensor] = {}
    named = model.state_dict(keep_vars=True)
    # A tensor with several names is gathered once, on every rank, whether the rank keeps it or not.
    for tensor in {id(tensor): tensor for tensor in named.values() if isinstance(tensor, torch.Tensor)}.values():
        with _gathered(tensor):
            value = full_value(tensor)
            if keep:
                full[id(tensor)] = value.to("cpu", copy=True)
    # A value that is not a tensor is the extra state of a module.
    return {name: full.get(id(value), value) for name, value in named.items()} if keep else None


def gather_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Gather the full gradients by name. Every rank must call this function between backward and the optimizer step."""
    found = ((name, safe_get_full_grad(weight)) for name, weight in model.named_parameters() if weight.requires_grad)
    return {name: gradient.detach() for name, gradient in found if gradient is not None}


def full_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of a weight, with the values of its master weight.

    If the program changed an element of the weight since the last step, the result has the changed value. A frozen
    weight has no master weight, so the result has the values of the weight. Every rank must call this function, because
    the function gathers a sharded weight.
    """
    master = safe_get_full_fp32_param(tensor) if tensor.requires_grad else None
    weight = tensor.detach()
    return weight if master is None else with_writes(master, weight)


def load_weights(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Load full weights into a model. Return the names that `state` lacks, and the names that the model lacks.

    Every rank must call this function with all weights.

    Raises:
        RuntimeError: if a weight in `state` and in the model has different shapes. The error names the weight.
    """
    named = model.state_dict(keep_vars=True)
    extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
    if extra:
        model.load_state_dict(extra, strict=False)
    for name, tensor in named.items():
        if name in state and name not in extra:
            shape = full_shape(tensor)
            if shape != state[name].shape:
                raise RuntimeError(f"size mismatch for {name}: {[*state[name].shape]}, and the model has {[*shape]}.")
            with torch.no_grad(), _gathered(tensor, modified=True):
                tensor.copy_(state[name])
            if tensor.requires_grad:
                set_full_value(tensor, state[name].float())
    return [name for name in named if name not in state], [name for name in state if name not in named]


def update_master_weights(engine: Any) -> None:
    """Copy into the master weights each element that the program changed in the weights since the last step.

    Without this function, the optimizer would overwrite the changed elements with its master weights. All other
    elements of the master weights keep their float32 value.
    """
    for masters, weights in _master_weights(engine):
        copy_writes(masters, weights)


def _master_weights(engine: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pairs of flat tensors of this rank: master weights, and the corresponding weights of the model."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage in (1, 2):
        parts = zip(
            optimizer.single_partition_of_fp32_groups,
            optimizer.parallel_partitioned_bit16_groups,
            optimizer.real_dp_process_group,
        )
        yield from ((masters, weights[dist.get_rank(group)]) for masters, weights, group in parts)
    elif stage == 3:
        for masters, weights in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_partitioned_groups_flat):
            # Weights on a disk are not available, and float32 weights have no copy.
            if weights is not None and masters.numel() == weights.numel() and masters.data_ptr() != weights.data_ptr():
                yield masters, weights


def fix_round_robin_links(engine: Any) -> None:
    """Link each weight to its own master weight if DeepSpeed's option `round_robin_gradients` is set.

    With this option, DeepSpeed reorders the weights before it shards them. But DeepSpeed links weights and master
    weights in the original order, so a weight could have the master weight of another weight.
    """
    optimizer = engine.optimizer
    if getattr(optimizer, "round_robin_gradients", False):
        order, optimizer.bit16_groups = optimizer.bit16_groups, optimizer.round_robin_bit16_groups
        optimizer._link_all_hp_params()
        optimizer.bit16_groups = order


def full_shape(parameter: torch.Tensor) -> torch.Size:
    """Return the shape of a parameter before it was sharded."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _gathered(tensor: torch.Tensor, modified: bool = False) -> Any:
    """Return a context manager that gathers a sharded weight inside its `with` block.

    With `modified=True`, all ranks get the changes that rank 0 makes to the weight in the block.
    """
    return deepspeed.zero.GatheredParameters([tensor], modifier_rank=0 if modified else None)


def set_full_value(parameter: Any, value: torch.Tensor, key: str = "") -> None:
    """Set a parameter's master weight from the full tensor. With a `key`, set the optimizer state instead.

    Each rank passes the full tensor and stores only its own shard.

    Args:
        parameter: the parameter.
        value: the full tensor.
        key: the entry of the parameter's optimizer state, such as `exp_avg`; an empty string for the master weight.
    """
    value = value.to(parameter.device)
    if not hasattr(parameter, "ds_tensor"):
        _set_unsharded(parameter, value, key)
        return
    # All shards have one size, and the last is padded. DeepSpeed sets full values only where no padding is needed.
    size = parameter.ds_tensor.numel()
    start = size * dist.get_rank(parameter.ds_process_group)
    shard = value.flatten()[start : start + size]
    shard = nn.functional.pad(shard, (0, size - shard.numel()))
    if key:
        safe_set_local_optimizer_state(parameter, shard, key)
    else:
        safe_set_local_fp32_param(parameter, shard)


def _set_unsharded(parameter: torch.Tensor, value: torch.Tensor, key: str) -> None:
    if key:
        safe_set_full_optimizer_state(parameter, value, key)
    else:
        safe_set_full_fp32_param(parameter, value)
