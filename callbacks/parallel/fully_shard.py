"""Functions that shard a model with PyTorch's `fully_shard` (FSDP2)."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from ...engine.checkpoint.format.sharded import is_split
from ...engine.distributed.ranks import Ranks
from ...events.errors import ModelError
from ..model.blocks import own_modules
from .split_weights import local_part

KEPT = (nn.modules.batchnorm._BatchNorm,)
"""Modules that stay in float32 in mixed precision, because their running statistics stay in float32."""


def mesh_of(device: torch.device, world_size: int, degree: int | None) -> DeviceMesh:
    """Return the device mesh for `fully_shard`: the groups of ranks over which one copy of the model is sharded.

    If `degree` is None or equals the world size, the mesh has one dimension with all ranks. Otherwise the mesh has two
    dimensions. For example, with 8 ranks and `degree=4`, the shape of the mesh is (2, 4): two copies of the model, each
    sharded over 4 ranks.
    """
    if degree in (None, world_size):
        made = init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    else:
        made = init_device_mesh(device.type, (world_size // degree, degree), mesh_dim_names=("replicate", "shard"))
    _holding.append(weakref.ref(made))
    return made


_holding: list[weakref.ref[Any]] = []
"""The meshes that this module made, and the models that it sharded. These objects hold process groups, and torch caches
some of them. `release_process_groups` releases the process groups."""


@dataclass(frozen=True)
class ShardLayout:
    """Settings for sharding a model: device, ranks, precision, offloading and resharding."""

    device: torch.device
    """The device that computes."""
    mesh: DeviceMesh
    """The mesh of the ranks, from `mesh_of`."""
    reshard: bool
    """Whether gathered weights are freed after forward and gathered again for backward."""
    offload: bool
    """Whether the shards stay in host memory."""
    half: torch.dtype | None
    """The half-precision dtype of the computation. None: the dtype of the weights."""

    def options(self, block: nn.Module, root: bool) -> dict[str, Any]:
        """Return the arguments of `fully_shard` for a block, or for the model itself (`root=True`).

        The caller adds `reshard_after_forward`.
        """
        precision = MixedPrecisionPolicy()
        if isinstance(block, KEPT):
            precision = MixedPrecisionPolicy(cast_forward_inputs=False)
        elif self.half is not None:
            # Gradients are reduced in float32, and the loss is computed from float32 outputs.
            output = torch.float32 if root else None
            precision = MixedPrecisionPolicy(self.half, reduce_dtype=torch.float32, output_dtype=output)
        offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if self.offload else OffloadPolicy()
        return {"mesh": self.mesh, "mp_policy": precision, "offload_policy": offload}


def shard_model(model: nn.Module, blocks: list[nn.Module], layout: ShardLayout, ranks: Ranks) -> None:
    """Shard a model in place, block by block. The device holds at most one unsharded block at a time.

    All ranks start with the weights of rank 0. If rank 0 has a model on the meta device, the model's `_init_weights`,
    or else each module's `reset_parameters`, initializes the weights. A floating-point tensor that these methods do not
    set contains NaN: see `unfilled_tensors`.

    Args:
        model: the model, on any device.
        blocks: the modules to shard, inner modules first. The weights of a block are gathered together.
        layout: the settings of the sharding.
        ranks: the process group.

    Raises:
        ModelError: if a weight cannot be sharded.
    """
    # If rank 0 has values, no rank initialises weights, because that would draw random numbers.
    has_values = not ranks.gather_objects(any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())))[0]
    fill = _Initializer(model, layout.device, initialises=not has_values)
    if layout.half is not None:
        own = [module for module in model.modules() if isinstance(module, KEPT) and module not in blocks]
        blocks = [*(module for module in own if next(module.parameters(), None) is not None), *blocks]
    known = {*blocks}
    for block in (*blocks, model):
        modules = [*own_modules(block, known - {block})]
        fill(modules)
        # The model's own weights are needed again as soon as backward begins.
        reshard = layout.reshard and (block is not model or not blocks)
        weights = [
            (module, name, weight) for module in modules for name, weight in module.named_parameters(recurse=False)
        ]
        check_weights(model, [weight for _, _, weight in weights])
        fully_shard(block, reshard_after_forward=reshard, **layout.options(block, block is model))
        for module, name, weight in weights:
            vars(module._parameters[name]).update(vars(weight))  # attributes that the user set
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")  # `generate` uses the model's own weights, besides calling it
    _holding.append(weakref.ref(model))
    atexit.unregister(release_process_groups)
    atexit.register(release_process_groups)  # registered last, so it runs before the process group is left


def check_weights(model: nn.Module, together: list[nn.Parameter]) -> None:
    """Check that FSDP can shard each weight in `together`, and can gather all weights in `together` at once.

    Args:
        model: the model. Error messages use its names for the weights.
        together: the weights that FSDP gathers together: the weights of a block, or of the model outside of its blocks.

    Raises:
        ModelError: if a weight has a gradient hook or is a scalar, or if the weights have several dtypes. The error
            names a weight, and says how to fix the problem.
    """
    names = {weight: name for name, weight in model.named_parameters()}
    for weight in together:
        if weight.dim() == 0:
            raise ModelError(
                f"{names[weight]} has no dimension along which FSDP can shard it: give it the shape (1,), or train "
                "with `sharding='stage1'`, which keeps weights whole."
            )
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
            raise ModelError(
                f"{names[weight]} has a gradient hook, which FSDP does not call: move its code to a callback's "
                "`on_gradients`, or train with `sharding='stage1'`, which keeps weights whole."
            )
    kinds = {weight.dtype: names[weight] for weight in together}
    if len(kinds) > 1:
        dtypes = " and ".join(f"{kind} ({name})" for kind, name in kinds.items())
        raise ModelError(
            f"FSDP gathers weights of one dtype together, but these have {dtypes}: convert the model, or set `wrap` to "
            "blocks with one dtype each."
        )


@dataclass
class _Initializer:
    """Moves the weights and buffers of modules to the device, and gives them the values of rank 0.

    If `initialises` is True, the weights of modules on the meta device get initial values first.
    """

    model: Any
    device: torch.device
    initialises: bool
    _placed: dict[Any, torch.Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, modules: list[nn.Module]) -> None:
        made = [module for module in modules if any(tensor.is_meta for _, tensor in _own_tensors(module))]
        for module in modules:
            for name, tensor in _own_tensors(module):
                self._place(module, name, tensor)
        for module in made if self.initialises else ():
            self._initialise(module)
        for module in modules:
            for _, tensor in _own_tensors(module):
                dist.broadcast(tensor.detach(), 0)

    def _place(self, module: nn.Module, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_meta:
            tensor.data = tensor.data.to(self.device).contiguous()
            return
        if tensor not in self._placed:
            empty = torch.zeros_like(tensor, device=self.device)
            if tensor.is_floating_point():
                empty.fill_(torch.nan)
            self._placed[tensor] = nn.Parameter(empty, tensor.requires_grad) if _is_weight(tensor) else empty
        tensors: Any = module._parameters if _is_weight(tensor) else module._buffers
        tensors[name] = self._placed[tensor]

    def _initialise(self, module: Any) -> None:
        if hasattr(self.model, "_init_weights"):
            self.model._init_weights(module)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((name, weight) for name, weight in module.named_parameters(recurse=False))
    yield from ((name, buffer) for name, buffer in module.named_buffers(recurse=False))


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def unfilled_tensors(model: nn.Module) -> list[str]:
    """Return the names of the weights and buffers that contain NaN.

    In a model that was on the meta device, these tensors have not received values. In a sharded tensor, the function
    checks only the shard of this rank.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in named if tensor.is_floating_point() and bool(local_part(tensor).isnan().any())]


def is_sharded_model(model: nn.Module) -> bool:
    """Return whether `fully_shard` shards a model."""
    return isinstance(model, FSDPModule)


def synchronise(model: Any, last: bool) -> None:
    """Make FSDP reduce gradients in backward only if `last` is True: in the last batch of a step."""
    model.set_requires_gradient_sync(last)


def reshard_all(model: Any, failed: bool = False) -> None:
    """Free gathered weights, for example after an evaluation. The next forward then gathers the updated shards.

    With `failed=True`, also reset the state that an interrupted forward or backward left in FSDP.
    """
    for module in _sharded_modules(model):
        module.reshard()
    # A model without a forward has no state to reset, and raises.
    if failed and hasattr(model, "reset_iter_state") and model._get_fsdp_state()._is_root is not None:
        model.reset_iter_state()


def _sharded_modules(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def update_requires_grad(model: nn.Module) -> None:
    """Copy `requires_grad` of each shard to the full weight that FSDP gathers from the shards.

    Call this function after the program has frozen or unfrozen weights, which changes only the shards.
    """
    for module in _sharded_modules(model):
        wanted = {
            (inner, name): weight.requires_grad
            for inner in module.modules()
            for name, weight in inner.named_parameters(recurse=False)
            if is_split(weight)
        }
        module.unshard()
        for (inner, name), wants in wanted.items():
            weight = inner._parameters[name]
            if not is_split(weight):
                weight.requires_grad_(wants)
        module.reshard()


def release_process_groups() -> None:
    """Remove the process groups from all sharded models, so that `Ranks.leave` can destroy the groups.

    After this call, the models cannot run a forward.
    """
    for holder in filter(None, (reference() for reference in _holding)):
        if isinstance(holder, DeviceMesh):
            getattr(holder, "_pg_registry", {}).clear()
            continue
        for module in _sharded_modules(holder):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            for group in filter(None, groups):
                for info in filter(None, (group.mesh_info, group.post_forward_mesh_info)):
                    _drop_groups(vars(info))
    _holding.clear()


def _drop_groups(attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if isinstance(value, dist.ProcessGroup):
            attributes[name] = None
