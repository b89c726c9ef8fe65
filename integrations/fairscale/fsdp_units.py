"""What FairscaleFSDP does to a model, and to states of its optimizer, with fairscale's FullyShardedDataParallel."""

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
"""The names under which fairscale's wrappers hold what they wrap."""


def plain_name(name: str) -> str:
    """Return the name that a weight or module has where nothing is wrapped."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


class Unit(FullyShardedDataParallel):  # type: ignore[misc]
    """What is gathered at once. Everything inside keeps the name that it had before it was wrapped."""

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules by their names, of which the wrappers have those of what they wrap."""
        for name, module in super().named_modules(memo, prefix, remove_duplicate):
            yield plain_name(name), module

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return this process's parts by name. fairscale's own gathers, and waits for those that do not ask."""
        state: dict[str, Any] = nn.Module.state_dict(self, *args, **kwargs)
        return state

    def _register_post_backward_hooks(self) -> None:
        # Torch keeps the place that these hooks are put on, to which each forward would add another for good.
        _remove_hooks(self)
        super()._register_post_backward_hooks()


_alive: weakref.WeakSet[Unit] = weakref.WeakSet()
"""All units, which hold process groups."""


def units_of(root: Unit) -> list[Any]:
    """Return all units of a model, the outermost first."""
    return [module for module in root.modules() if isinstance(module, Unit)]


def split(
    model: nn.Module, blocks: list[nn.Module], device: torch.device, *, offload: bool, reshard: bool, bucket_mb: int
) -> Unit:
    """Split a model over the processes, block by block, so that no more than one is whole on the device at a time.

    Its blocks are replaced by units. All processes begin with the weights of the first.

    Args:
        model: the model, anywhere, with weights in float32.
        blocks: its parts, inner ones first.
        device: where it computes.
        offload: whether the parts wait in the host's memory.
        reshard: whether weights that were gathered for forward are gathered again for backward; those that are in no
            block are not.
        bucket_mb: MiB of gradients that are sent at once; 0 to send each by itself.

    Returns:
        What is called in place of the model.

    Raises:
        ModelError: for weights that cannot be split.
    """
    for name, weight in model.named_parameters():
        if hasattr(weight, "_is_sharded"):
            raise ModelError(f"{type(model).__name__} was split by another trainer's FairscaleFSDP: make it anew.")
        if weight.is_meta or weight.dtype != torch.float32:
            raise ModelError(
                f"FairscaleFSDP splits weights in float32 that have values, and {name} is {weight.dtype} on "
                f"{weight.device}. PyTorch's FSDP2 takes it: leave the word 'fairscale' out."
            )
    whole_size = sum(weight.nbytes for weight in model.parameters())
    options = {
        "process_group": dist.group.WORLD,
        "process_group_reduce_scatter": ProcessGroupName.default,  # a group of its own would outlive the run
        "reshard_after_forward": reshard,
        "flatten_parameters": False,
        "move_params_to_cpu": offload,
        "bucket_cap_mb": min(bucket_mb, whole_size // 2**20 + 1),  # fairscale makes it as large as it may be
        "compute_device": device,
        "state_dict_device": torch.device("cpu") if offload else device,
        "clear_autocast_cache": True,
    }
    known = {*blocks}
    own = {block: [*own_modules(block, known - {block})] for block in (*blocks, model)}
    for block in blocks:
        _place(own[block], device)
        _replace(model, block, _unit(block, options))
    _place(own[model], device)
    root = _unit(model, options)
    whole_model: Any = model
    whole_model.register_load_state_dict_pre_hook(_cutting(root))
    _alive.update(units_of(root))
    atexit.unregister(release)
    atexit.register(release)  # last, and so before the process group is left
    return root


@torch.no_grad()
def _place(modules: list[nn.Module], device: torch.device) -> None:
    """Put the weights and buffers of modules on the device, in memory of their own, with the first process's values."""
    for module in modules:
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.data = tensor.data.to(device, copy=True, memory_format=torch.contiguous_format)
            dist.broadcast(tensor.data, 0)


def _unit(module: nn.Module, options: dict[str, Any]) -> Unit:
    unit = Unit(module, **options)
    if unit.move_params_to_cpu:
        for weight in unit.params:
            weight.data = weight.data.cpu()
    return unit


def _replace(model: nn.Module, block: nn.Module, unit: Unit) -> None:
    for parent in [*model.modules()]:
        for name, child in parent._modules.items():
            if child is block:
                parent._modules[name] = unit


def make_ready(root: Unit) -> None:
    """Have all units know their parts before the first forward; fairscale would forget some if that evaluates."""
    root.train()
    for unit in units_of(root):
        for weight in unit.params:
            unit._init_param_attributes(weight)


def rest(root: Unit, failed: bool = False) -> None:
    """Let go of gathered weights, also of those that fairscale keeps for a backward pass that does not come."""
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


def whole(part: torch.Tensor, size: torch.Size, device: torch.device, ranks: Ranks) -> torch.Tensor:
    """Return all of what each process has a part of, on the device; called on every process."""
    gathered: torch.Tensor = ranks.gather(part.detach().to(device))
    return gathered[: size.numel()].view(size)


def gathered_weights(
    root: Unit, device: torch.device, ranks: Ranks, keep: bool
) -> Callable[[nn.Module], dict[str, torch.Tensor]]:
    """Return what gathers a model's weights one by one, so that a process that does not keep them never has them all.

    Weights that are one under several names stay so.
    """

    def gather(model: nn.Module) -> dict[str, torch.Tensor]:
        rest(root)
        seen: dict[Any, torch.Tensor] = {}
        found: dict[str, torch.Tensor] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor not in seen:
                split = hasattr(tensor, "_is_sharded")
                value = whole(tensor, tensor._orig_size, device, ranks) if split else tensor.detach()
                seen[tensor] = value.to("cpu", copy=True) if keep else torch.empty(0)
            found[name] = seen[tensor]
        return found if keep else {}

    return gather


def gathered_state(device: torch.device, ranks: Ranks, keep: bool) -> Callable[[Any], dict[str, Any]]:
    """Return what gathers the state of an optimizer, which then is that of any other run."""

    def gather(optimizer: Any) -> dict[str, Any]:
        state: dict[str, Any] = optimizer.state_dict()
        weights = _weights_of(optimizer)
        parts: dict[int, dict[str, Any]] = {}
        for number, values in state["state"].items():
            weight = weights[number]
            parts[number] = {}
            for name, value in values.items():
                if _has_size(value, weight._fp32_shard.shape):
                    value = whole(value, weight._orig_size, device, ranks)
                    value = value.cpu() if keep else None
                parts[number][name] = value
        return {**state, "state": parts} if keep else {}

    return gather


def load_state(root: Unit) -> Callable[[Any, dict[str, Any]], None]:
    """Return what loads a whole state into an optimizer, of which each process keeps its part."""

    def load(optimizer: Any, state: dict[str, Any]) -> None:
        weights = _weights_of(optimizer)
        parts = {
            number: {
                name: _cut(root, value) if name != "step" and _has_size(value, weights[number]._orig_size) else value
                for name, value in values.items()
            }
            for number, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": parts})

    return load


def _has_size(value: Any, size: torch.Size) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == size


def _weights_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's parameters in the order in which its state numbers them."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _cut(root: Unit, value: torch.Tensor) -> torch.Tensor:
    part: torch.Tensor = root._get_shard(value)[0]
    return part


def _cutting(root: Unit) -> Callable[..., None]:
    """Return what a model does before it loads weights: it cuts out its part of those that are whole."""

    def cut(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        rest(root)
        weights: Any = model.named_parameters(remove_duplicate=False)
        for name, weight in weights:
            value = state.get(prefix + name)
            if value is not None and value.shape == weight._orig_size:
                state[prefix + name] = _cut(root, value)

    return cut


def _remove_hooks(unit: Any) -> None:
    for weight in unit.params:
        if hook := vars(weight).pop("_shard_bwd_hook", None):
            hook[1].remove()


def release() -> None:
    """Let go of the process groups that split models hold, after which they compute no more; see `Ranks.leave`."""
    for unit in [*_alive]:
        _remove_hooks(unit)
        unit.process_group = unit.process_group_reduce_scatter = None
        if unit._reducer is not None:
            unit._reducer.buckets.clear()
    _alive.clear()
    ReduceScatterBucketer._get_shard_size.cache_clear()  # which would keep all that ever reduced
