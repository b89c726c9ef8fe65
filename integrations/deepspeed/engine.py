"""Build DeepSpeed's engine for a model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.optim import Optimizer

from ...callbacks.precision.mixed_precision import to_float32
from ...engine.data.batches import map_tensors
from ...engine.distributed.memory_errors import lacks_memory
from ...engine.run import Run
from ...events.errors import ArgumentError, TrainbusError
from .config import stage_of
from .process import disable_shm_extension, ignore_deprecated_names, init_single_process, warn_before_compilation

Groups = list[dict[str, Any]]


def default_groups(run: Run) -> Groups:
    """Build two parameter groups, with and without weight decay, for an optimizer from DeepSpeed's configuration."""
    decaying, others = run.services.parameter_groups(run.model, 1.0)[:2]
    del decaying["weight_decay"]  # the configuration has the value
    return [decaying, others]


def drop_frozen(groups: Groups) -> None:
    """Remove frozen parameters from parameter groups, in place.

    ZeRO would apply weight decay to frozen parameters, and fails on a group that has only frozen parameters.
    """
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]


def prepare_process(config: dict[str, Any], run: Run) -> None:
    """Prepare the process for DeepSpeed's engine, before the engine is built.

    In a single process, create the process group that DeepSpeed requires. Prevent the slow compilation of DeepSpeed's
    CPU all-reduce, which training does not use. Ignore torch's deprecation warnings. Warn if DeepSpeed will compile its
    optimizer.
    """
    init_single_process(run)
    disable_shm_extension()
    ignore_deprecated_names()
    if run.ranks.local_rank == 0:
        warn_before_compilation(config)


def build_engine(model: nn.Module, optimizer: Optimizer | None, groups: Groups, config: dict[str, Any]) -> Any:
    """Build DeepSpeed's engine for a model.

    Args:
        model: the model. DeepSpeed changes the model in place.
        optimizer: the optimizer. None: DeepSpeed builds the optimizer that the configuration names.
        groups: the parameter groups of the optimizer. With stages 1 to 3, the function removes frozen parameters from
            these groups.
        config: the result of `complete_config`. The function leaves out the schedule, because the run itself steps the
            schedule.

    Raises:
        ArgumentError: if DeepSpeed refuses the model or the configuration, with DeepSpeed's own message.
    """
    if stage_of(config) > 0:
        drop_frozen(groups)
    try:
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            model_parameters=groups if optimizer is None else None,
            config=deepcopy({name: part for name, part in config.items() if name != "scheduler"}),
        )
    except TrainbusError:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        raise ArgumentError(
            f"DeepSpeed refused the model or its configuration: {type(error).__name__}: {error}. Set "
            "`log_level='info'` to log the configuration."
        ) from error
    return engine


def attributes_of(model: nn.Module) -> dict[Any, set[str]]:
    """Return the names of the attributes of each module and parameter of a model: object -> names."""
    return {owner: {*vars(owner)} for owner in (*model.modules(), *model.parameters())}


def added_attributes(before: dict[Any, set[str]]) -> list[tuple[Any, str]]:
    """Return the attributes that were added after `attributes_of` returned `before`, as pairs of object and name."""
    return [(owner, name) for owner, names in before.items() for name in {*vars(owner)} - names]


def half_precision_forward(model: nn.Module, dtype: torch.dtype) -> Callable[..., Any]:
    """Return a function that calls the model's forward with floating-point inputs in `dtype`.

    The function converts half-precision outputs to float32.
    """
    forward = model.forward

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def forward_in_half_precision(*args: Any, **kwargs: Any) -> Any:
        return to_float32(forward(*map_tensors(cast, args), **map_tensors(cast, kwargs)))

    return forward_in_half_precision
