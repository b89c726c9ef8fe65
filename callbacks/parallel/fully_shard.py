"""What FSDP does to a model and its gradients, with PyTorch's `fully_shard`."""

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
"""What stays in float32 in mixed precision: its weights go with its running sums, which do."""


def mesh_of(device: torch.device, processes: int, degree: int | None) -> DeviceMesh:
    """Return the processes in one row, or, where fewer share a copy of the weights, in one row for each copy."""
    if degree in (None, processes):
        made = init_device_mesh(device.type, (processes,), mesh_dim_names=("shard",))
    else:
        made = init_device_mesh(device.type, (processes // degree, degree), mesh_dim_names=("replicate", "shard"))
    _holding.append(weakref.ref(made))
    return made


_holding: list[weakref.ref[Any]] = []
"""The meshes and models that were made here, some of which torch's caches keep alive: they hold process groups."""


@dataclass(frozen=True)
class Way:
    """How a model is split."""

    device: torch.device
    """Where the model computes."""
    mesh: DeviceMesh
    """The processes."""
    reshard: bool
    """Whether weights that were gathered for forward are gathered again for backward."""
    offload: bool
    """Whether the parts wait in the host's memory."""
    half: torch.dtype | None
    """In what the model computes; None for the type of its weights."""

    def options(self, block: nn.Module, root: bool) -> dict[str, Any]:
        """Return what `fully_shard` is told, for the model itself or one of its blocks."""
        precision = MixedPrecisionPolicy()
        if isinstance(block, KEPT):
            precision = MixedPrecisionPolicy(cast_forward_inputs=False)
        elif self.half is not None:
            # Gradients are added up in float32, and so is the loss computed.
            output = torch.float32 if root else None
            precision = MixedPrecisionPolicy(self.half, reduce_dtype=torch.float32, output_dtype=output)
        offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if self.offload else OffloadPolicy()
        return {"mesh": self.mesh, "mp_policy": precision, "offload_policy": offload}


def split(model: nn.Module, blocks: list[nn.Module], way: Way, ranks: Ranks) -> None:
    """Split a model in place, block by block, so that no more than one block is whole on the device at a time.

    All processes begin with the weights of the first. Where that has none, the model being on the meta device, they are
    made: by the model's own `_init_weights`, or by each module's `reset_parameters`; what those leave is NaN.

    Args:
        model: the model, anywhere.
        blocks: its parts, inner ones first.
        way: how.
        ranks: the processes.
    """
    # Where the first process has values, nobody makes any: it would draw random numbers.
    has_values = not ranks.gather_objects(any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())))[0]
    fill = _Filling(model, way.device, makes=not has_values)
    if way.half is not None:
        own = [module for module in model.modules() if isinstance(module, KEPT) and module not in blocks]
        blocks = [*(module for module in own if next(module.parameters(), None) is not None), *blocks]
    known = {*blocks}
    for block in (*blocks, model):
        modules = [*own_modules(block, known - {block})]
        fill(modules)
        # The model's own weights are wanted again as soon as backward begins.
        reshard = way.reshard and (block is not model or not blocks)
        weights = [
            (module, name, weight) for module in modules for name, weight in module.named_parameters(recurse=False)
        ]
        refuse_weights(model, [weight for _, _, weight in weights])
        fully_shard(block, reshard_after_forward=reshard, **way.options(block, block is model))
        for module, name, weight in weights:
            vars(module._parameters[name]).update(vars(weight))  # what the user noted on it
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")  # which uses the model's own weights, beside calling it
    _holding.append(weakref.ref(model))
    atexit.unregister(release)
    atexit.register(release)  # last, and so before the process group is left


def refuse_weights(model: nn.Module, together: list[nn.Parameter]) -> None:
    """Refuse weights that cannot be gathered together, or cannot be split.

    Raises:
        ModelError: naming one of them, and the remedy.
    """
    names = {weight: name for name, weight in model.named_parameters()}
    for weight in together:
        if weight.dim() == 0:
            raise ModelError(
                f"{names[weight]} is a single number, without a dimension along which FSDP could split it: give it the "
                "shape (1,), or train with `sharding='stage1'`, which keeps weights whole."
            )
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
            raise ModelError(
                f"{names[weight]} has a hook on its gradient, which FSDP would not call: do its work in a callback's "
                "`on_gradients`, or train with `sharding='stage1'`, which keeps weights whole."
            )
    kinds = {weight.dtype: names[weight] for weight in together}
    if len(kinds) > 1:
        told = " and ".join(f"{kind} ({name})" for kind, name in kinds.items())
        raise ModelError(
            f"FSDP gathers weights of one type at once, and these have {told}: convert the model, or have `wrap` name "
            "blocks of which each has one type."
        )


@dataclass
class _Filling:
    """Puts the weights and buffers of modules on the device, with the values of the first process."""

    model: Any
    device: torch.device
    makes: bool
    _placed: dict[Any, torch.Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, modules: list[nn.Module]) -> None:
        made = [module for module in modules if any(tensor.is_meta for _, tensor in _slots(module))]
        for module in modules:
            for name, tensor in _slots(module):
                self._place(module, name, tensor)
        for module in made if self.makes else ():
            self._initialise(module)
        for module in modules:
            for _, tensor in _slots(module):
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
        slots: Any = module._parameters if _is_weight(tensor) else module._buffers
        slots[name] = self._placed[tensor]

    def _initialise(self, module: Any) -> None:
        if hasattr(self.model, "_init_weights"):
            self.model._init_weights(module)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()


def _slots(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((name, weight) for name, weight in module.named_parameters(recurse=False))
    yield from ((name, buffer) for name, buffer in module.named_buffers(recurse=False))


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def never_filled(model: nn.Module) -> list[str]:
    """Return the names of weights and buffers that have NaN in this process's part."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in named if tensor.is_floating_point() and bool(local_part(tensor).isnan().any())]


def is_split_model(model: nn.Module) -> bool:
    """Say whether a model is split."""
    return isinstance(model, FSDPModule)


def synchronise(model: Any, last: bool) -> None:
    """Have gradients reduced and split, or kept whole until the last batch of a step."""
    model.set_requires_gradient_sync(last)


def together_again(model: Any, failed: bool = False) -> None:
    """Let go of weights that an evaluation gathered: they would be used again, whatever the parts are by then."""
    for module in _split_modules(model):
        module.reshard()
    # Before its first forward a model has nothing to reset, and cannot.
    if failed and hasattr(model, "reset_iter_state") and model._get_fsdp_state()._is_root is not None:
        model.reset_iter_state()


def _split_modules(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def follow_trainable(model: nn.Module) -> None:
    """Have the gathered weights trained, or not, as the parts of them say by now."""
    for module in _split_modules(model):
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


def release() -> None:
    """Let go of the process groups that split models hold, after which they compute no more; see `Ranks.leave`."""
    for holder in filter(None, (reference() for reference in _holding)):
        if isinstance(holder, DeviceMesh):
            getattr(holder, "_pg_registry", {}).clear()
            continue
        for module in _split_modules(holder):
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
