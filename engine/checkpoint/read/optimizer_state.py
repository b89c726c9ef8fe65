"""Restoring optimizer, schedule and loss scaler. The optimizer may have other parameter groups than the saved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from ....events.capabilities import Capability
from ....events.composition import provides
from ....events.errors import CheckpointError
from ...optim.saved_groups import saved_groups, split_state
from ..format.files import LACKING
from ..format.sharded import as_tensor, fitted
from ..protocols import ResumableRun
from .saved import SavedCheckpoint
from .state_files import StatePart

SHAPED = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""Entries of the state of torch optimizers with the shape of their parameter. Other optimizers may factorise them."""


def restore_optimizer(run: ResumableRun, checkpoint: SavedCheckpoint) -> None:
    """Load optimizer, learning-rate schedule and loss scaler of a run from a checkpoint.

    A part that the run does not have, such as a loss scaler, is not loaded. With `resume_partial`, a part that the
    checkpoint lacks starts fresh.

    Raises:
        CheckpointError: if a part does not fit, or if the checkpoint lacks a part and `resume_partial` is not set.
    """
    for part in targets_of(run):
        _restore_part(run, checkpoint, part)


def _restore_part(run: ResumableRun, checkpoint: SavedCheckpoint, part: StatePart) -> None:
    stored, target = checkpoint.state_files, targets_of(run)[part]
    path = stored.path_of(part)
    if target is None or (not stored.has(part) and run.args.resume_partial):
        return
    if not stored.has(part):
        raise CheckpointError(f"{checkpoint.path} has no {path.name}, {LACKING}")
    if part is StatePart.OPTIMIZER:
        stored.restore(part, target, partial(load_optimizer, run, path=path))
    else:
        stored.restore(part, target, target.load_state_dict)


def restore_scaler(run: ResumableRun, checkpoint: SavedCheckpoint) -> None:
    """Load only the loss scaler of a run from a checkpoint. If the run has no scaler, do nothing.

    Raises:
        CheckpointError: if the state does not fit, or if the checkpoint has no scaler and `resume_partial` is not set.
    """
    _restore_part(run, checkpoint, StatePart.SCALER)


def targets_of(run: ResumableRun) -> dict[StatePart, Any]:
    """Return optimizer, schedule and loss scaler of the run by `StatePart`; None for each that the run lacks."""
    return {
        StatePart.OPTIMIZER: run.optimizer,
        StatePart.SCHEDULER: run.lr_scheduler,
        StatePart.SCALER: run.seams.scaler,
    }


def load_optimizer(run: ResumableRun, state: Any, path: Path) -> None:
    """Load a saved state into the optimizer of the run.

    An optimizer state numbers the parameters in the order of the parameter groups. If `weight_decay` was 0 in the saved
    run and is 0.1 now, the two runs have different groups. In this case, the function does one of two things:

    - If no callback built the optimizer, it regroups the parameters of the optimizer as in the saved run.
    - If a callback with `Capability.KEEPS_GROUPS` built the optimizer, it converts the saved state to the groups of the
      optimizer.

    Args:
        run: the run.
        state: the result of an optimizer's `state_dict()`.
        path: the file of the state, for errors.

    Raises:
        CheckpointError: if `state` is the state of another optimizer or of other parameters.
    """
    optimizer = run.optimizer
    plain = not run.seams.filled_by("make_optimizer") and isinstance(optimizer, Optimizer)
    if plain:
        saved = _saved_groups(state, path)
        _regroup(run, [len(group["params"]) for group in saved], path)
        _check_fit(optimizer, state, saved, path)
    elif provides(run.bus.subscribers.values(), Capability.KEEPS_GROUPS) and _saved_groups(state, path):
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        state = split_state(state, sizes, partial(run.services.parameter_groups, run.model))
    run.seams.load_optimizer(optimizer, _placed_like_parameters(optimizer, state))


def _placed_like_parameters(optimizer: Any, state: Any) -> Any:
    """Return an optimizer state in which each tensor has the shards and the memory layout of its parameter.

    Tensors that are not in memory yet are read from the checkpoint. The layout matters: a fused optimizer pairs the
    values of a parameter and of its state by their positions in memory.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping):
        return state
    parameters: dict[Any, Any] = {}
    for group, was in zip(getattr(optimizer, "param_groups", ()), state.get("param_groups", ())):
        if isinstance(was, Mapping) and len(was.get("params", ())) == len(group["params"]):
            parameters.update(zip(was["params"], group["params"]))
    states = {
        number: _map_leaves(entries, partial(fitted, like=parameters.get(number)))
        for number, entries in state["state"].items()
    }
    rest = {key: value for key, value in state.items() if key != "state"}
    return {**_map_leaves(rest, as_tensor), "state": states}


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every leaf of nested dicts, lists and tuples, and return the result."""
    if isinstance(value, Mapping):
        return {key: _map_leaves(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_leaves(inner, change) for inner in value)
    return change(value)


def _saved_groups(state: Any, path: Path) -> list[dict[str, Any]]:
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(groups, list) or not isinstance(state.get("state"), Mapping):
        groups = [None]
    if not all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups):
        raise CheckpointError(f"{path} is not the state of an optimizer.")
    return groups


def _regroup(run: ResumableRun, sizes: list[int], path: Path) -> None:
    """Divide the parameters of the optimizer of the run into groups of the saved sizes.

    Raises:
        CheckpointError: if `saved_groups` finds no groups with these sizes.
    """
    own = [group["params"] for group in run.optimizer.param_groups]
    groups = saved_groups(own, sizes, partial(run.services.parameter_groups, run.model))
    if groups is None:
        raise CheckpointError(
            f"{path} has groups of {_listed(sizes)} parameters, and the optimizer of this run has groups of "
            f"{_listed([len(members) for members in own])}. Use the model of the saved run, freeze the same "
            "parameters, and build the optimizer with the same groups."
        )
    for group, members in zip(run.optimizer.param_groups, groups):
        group["params"] = members


def _listed(sizes: list[int]) -> str:
    return " and ".join(map(str, sizes)) or "no"


def _check_fit(optimizer: Optimizer, state: dict[str, Any], saved: list[dict[str, Any]], path: Path) -> None:
    """Raise a CheckpointError if `state` is the state of another optimizer, or has tensors of other shapes.

    `saved` is the list of the parameter groups of `state`.
    """
    from_torch = type(optimizer).__module__.startswith("torch.optim.")
    for group, was in zip(optimizer.param_groups, saved):
        lacking = [name for name in ("betas", "momentum", "clip_threshold") if name in group and name not in was]
        if lacking:
            raise CheckpointError(
                f"{path} is not a state of the optimizer {type(optimizer).__name__}: it has no {lacking[0]!r}. "
                "Set `optim` to the optimizer of the saved run."
            )
        for parameter, number in zip(group["params"], was["params"]) if from_torch else ():
            entries = state["state"].get(number, {})
            if not isinstance(entries, Mapping):
                raise CheckpointError(f"{path} is not the state of an optimizer.")
            expected = getattr(parameter, "_orig_size", parameter.shape)  # fairscale's shape before sharding
            for name in SHAPED:
                shape = getattr(entries.get(name), "shape", expected)
                if shape != expected:
                    raise CheckpointError(
                        f"{path} has a {name!r} of shape {[*shape]} for a parameter of shape {[*expected]}. "
                        "Use the model of the saved run."
                    )
