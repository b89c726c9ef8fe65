"""Wrap a model in FSDP units of fairscale, and convert between full and sharded states of model and optimizer.

A unit is a module that `FullyShardedDataParallel` wraps. The weights of a unit are gathered and freed together.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from fairscale.internal.parallel import ProcessGroupName
from fairscale.internal.reduce_scatter_bucketer import ReduceScatterBucketer
from fairscale.nn.data_parallel import FullyShardedDataParallel
from fairscale.nn.data_parallel.fully_sharded_data_parallel import TrainingState
from torch import nn

from ...callbacks.model.blocks import own_modules
from ...engine.distributed.ranks import Ranks
from ...events.errors import ModelError

WRAPPERS = ("_fsdp_wrapped_module", "_fpw_module")
"""The attributes in which fairscale's wrappers store the wrapped module."""


def plain_name(name: str) -> str:
    """Return the name that a weight or module has in the model without wrappers."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


class FSDPUnit(FullyShardedDataParallel):  # type: ignore[misc]
    """fairscale's wrapper around a module. The names of weights and modules stay the same as without the wrapper."""

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules by name. A wrapper and the module in the wrapper have the same name."""
        for name, module in super().named_modules(memo, prefix, remove_duplicate):
            yield plain_name(name), module

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return this rank's shards by name. Unlike the method of fairscale, this method is not a collective."""
        state: dict[str, Any] = nn.Module.state_dict(self, *args, **kwargs)
        return state

    def _register_post_backward_hooks(self) -> None:
        # torch keeps the gradient accumulator that holds these hooks, so each forward would add one more.
        _remove_hooks(self)
        super()._register_post_backward_hooks()


_units: weakref.WeakSet[FSDPUnit] = weakref.WeakSet()
"""All units of this process. Each unit references process groups."""


def units_of(root: FSDPUnit) -> list[Any]:
    """Return all units of a model, the outermost first."""
    return [module for module in root.modules() if isinstance(module, FSDPUnit)]


def shard_model(
    model: nn.Module, blocks: list[nn.Module], device: torch.device, *, offload: bool, reshard: bool, bucket_mb: int
) -> FSDPUnit:
    """Shard a model over the ranks, block by block.

    Each block moves to the device, and its weights are sharded before the next block moves. A unit is fairscale's
    wrapper around a block. Units replace the blocks in the model. All ranks start with the weights of rank 0.

    Args:
        model: the model, on any device, with weights in float32.
        blocks: the modules to wrap, inner modules first.
        device: the device that computes.
        offload: whether the shards stay in host memory.
        reshard: whether the weights of blocks are freed after forward and gathered again for backward. Weights outside
            of the blocks always stay gathered from forward to backward.
        bucket_mb: the size of a bucket of gradients, in MiB. 0: no buckets.

    Returns:
        The unit that wraps the model. Call this unit in place of the model.

    Raises:
        ModelError: if a weight is not float32 or is on the meta device, or if another trainer has sharded the model.
    """
    _check_weights(model)
    options = _unit_options(model, device, offload=offload, reshard=reshard, bucket_mb=bucket_mb)
    known = {*blocks}
    own = {block: [*own_modules(block, known - {block})] for block in (*blocks, model)}
    for block in blocks:
        _move_and_broadcast(own[block], device)
        _replace(model, block, _unit(block, options))
    _move_and_broadcast(own[model], device)
    root = _unit(model, options)
    whole_model: Any = model
    whole_model.register_load_state_dict_pre_hook(_shard_before_loading(root))
    _units.update(units_of(root))
    atexit.unregister(release_process_groups)
    atexit.register(release_process_groups)  # registered last, so it runs before the process group is destroyed
    return root


def _check_weights(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if hasattr(weight, "_is_sharded"):
            raise ModelError(
                f"{type(model).__name__} was sharded by another trainer's FairscaleFSDP: build a new model."
            )
        if weight.is_meta or weight.dtype != torch.float32:
            raise ModelError(
                f"FairscaleFSDP shards float32 weights that are not on the meta device, but {name} is {weight.dtype} "
                f"on {weight.device}. PyTorch's FSDP2 supports it: remove the word 'fairscale'."
            )


def _unit_options(
    model: nn.Module, device: torch.device, *, offload: bool, reshard: bool, bucket_mb: int
) -> dict[str, Any]:
    """Return the arguments of `FullyShardedDataParallel` for every unit."""
    total_bytes = sum(weight.nbytes for weight in model.parameters())
    return {
        "process_group": dist.group.WORLD,
        "process_group_reduce_scatter": ProcessGroupName.default,  # a separate group would outlive the run
        "reshard_after_forward": reshard,
        "flatten_parameters": False,
        "move_params_to_cpu": offload,
        "bucket_cap_mb": min(bucket_mb, total_bytes // 2**20 + 1),  # fairscale allocates the full capacity
        "compute_device": device,
        "state_dict_device": torch.device("cpu") if offload else device,
        "clear_autocast_cache": True,
    }


@torch.no_grad()
def _move_and_broadcast(modules: list[nn.Module], device: torch.device) -> None:
    """Copy the weights and buffers of modules to the device, and give them the values of rank 0."""
    for module in modules:
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.data = tensor.data.to(device, copy=True, memory_format=torch.contiguous_format)
            dist.broadcast(tensor.data, 0)


def _unit(module: nn.Module, options: dict[str, Any]) -> FSDPUnit:
    unit = FSDPUnit(module, **options)
    if unit.move_params_to_cpu:
        for weight in unit.params:
            weight.data = weight.data.cpu()
    return unit


def _replace(model: nn.Module, block: nn.Module, unit: FSDPUnit) -> None:
    for parent in [*model.modules()]:
        for name, child in parent._modules.items():
            if child is block:
                parent._modules[name] = unit


def init_units(root: FSDPUnit) -> None:
    """Initialize the shards of all units before the first forward.

    fairscale itself initializes the shards in the first forward, but misses some units if this forward is an
    evaluation.
    """
    root.train()
    for unit in units_of(root):
        for weight in unit.params:
            unit._init_param_attributes(weight)


def free_full_weights(root: FSDPUnit, failed: bool = False) -> None:
    """Free all gathered weights, also the weights that fairscale keeps for a backward pass.

    Args:
        root: the outermost unit.
        failed: whether a step ended in an error. If True, the function also deletes the gradients of this step, and
            resets the units for another forward.
    """
    for unit in units_of(root):
        unit._free_full_params()
        unit._use_fp32_param_shard()
        if not failed:
            continue
        unit.training_state = TrainingState.IDLE
        unit._pre_backward_hook_has_run = False
        unit._reset_lazy_init()
        for weight in unit.params:
            weight.grad = None
            vars(weight).pop("_saved_grad_shard", None)


def _gather(shard: torch.Tensor, size: torch.Size, device: torch.device, ranks: Ranks) -> torch.Tensor:
    """Gather the full tensor of shape `size` on the device, from the shards of all ranks. Every rank must call this."""
    gathered: torch.Tensor = ranks.gather(shard.detach().to(device))
    return gathered[: size.numel()].view(size)


def gather_weights(
    root: FSDPUnit, model: nn.Module, device: torch.device, ranks: Ranks, keep: bool
) -> dict[str, torch.Tensor]:
    """Gather the full weights of a model in host memory: name -> full weight. Tied weights have one tensor.

    Every rank must call this function. The function gathers one weight at a time. A rank with `keep=False` returns {},
    and never holds all weights.
    """
    free_full_weights(root)
    seen: dict[Any, torch.Tensor] = {}
    full: dict[str, torch.Tensor] = {}
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    full.update({name: value for name, value in state.items() if not torch.is_tensor(value)})  # extra state of modules
    for name, tensor in state.items():
        if name in full:
            continue
        if tensor not in seen:
            sharded = hasattr(tensor, "_is_sharded")
            value = _gather(tensor, tensor._orig_size, device, ranks) if sharded else tensor.detach()
            seen[tensor] = value.to("cpu", copy=True) if keep else torch.empty(0)
        full[name] = seen[tensor]
    return full if keep else {}


def gather_optimizer_state(optimizer: Any, device: torch.device, ranks: Ranks, keep: bool) -> dict[str, Any]:
    """Gather the full state of an optimizer that holds shards, in the format of a run without sharding.

    Every rank must call this function. A rank with `keep=False` returns {}.
    """
    state: dict[str, Any] = optimizer.state_dict()
    weights = _weights_of(optimizer)
    full: dict[int, dict[str, Any]] = {}
    for number, values in state["state"].items():
        weight = weights[number]
        full[number] = {}
        for name, value in values.items():
            if _has_shape(value, weight._fp32_shard.shape):
                value = _gather(value, weight._orig_size, device, ranks)
                value = value.cpu() if keep else None
            full[number][name] = value
    return {**state, "state": full} if keep else {}


def load_optimizer_state(root: FSDPUnit, optimizer: Any, state: dict[str, Any]) -> None:
    """Load this rank's shards of `state`, a full optimizer state from `gather_optimizer_state`, into an optimizer."""
    weights = _weights_of(optimizer)
    shards = {
        number: {
            name: _shard_of(root, value) if name != "step" and _has_shape(value, weights[number]._orig_size) else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": shards})


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == shape


def _weights_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer. The index in the list is the parameter's number in the optimizer state."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _shard_of(root: FSDPUnit, value: torch.Tensor) -> torch.Tensor:
    shard: torch.Tensor = root._get_shard(value)[0]
    return shard


def _shard_before_loading(root: FSDPUnit) -> Callable[..., None]:
    """Return a pre-hook of `load_state_dict` that replaces the full weights in the state by this rank's shards."""

    def shard(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        free_full_weights(root)
        weights: Any = model.named_parameters(remove_duplicate=False)
        for name, weight in weights:
            value = state.get(prefix + name)
            if value is not None and value.shape == weight._orig_size:
                state[prefix + name] = _shard_of(root, value)

    return shard


def _remove_hooks(unit: Any) -> None:
    for weight in unit.params:
        if hook := vars(weight).pop("_shard_bwd_hook", None):
            hook[1].remove()


def release_process_groups() -> None:
    """Remove the process groups from all FSDP units, so that `Ranks.leave` can destroy the groups.

    After this call, the units cannot run a forward.
    """
    for unit in [*_units]:
        _remove_hooks(unit)
        unit.process_group = unit.process_group_reduce_scatter = None
        if unit._reducer is not None:
            unit._reducer.buckets.clear()
    _units.clear()
    ReduceScatterBucketer._get_shard_size.cache_clear()  # it references all bucketers
