"""Loading the state of an optimizer whose parameters may have been in other groups when it was saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ....events.errors import ArgumentError, CheckpointError
from ...optim.build import parameter_groups
from ...run import Run
from ..format.sharded import as_tensor, fitted

SHAPED = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""Parts of a parameter's state that have its shape, in torch's own optimizers; others may keep less of them."""


def load_optimizer(run: Run, state: dict[str, Any], path: Path) -> None:
    """Load the state of the run's optimizer, with the groups that it was saved with.

    A state numbers the parameters through its groups. Where a run splits them otherwise, as without weight decay, it
    takes over the saved division, found by the names of the parameters.

    Args:
        run: the run.
        state: as `state_dict()` of an optimizer returns it.
        path: the file it is from, for errors.

    Raises:
        CheckpointError: if it is the state of another optimizer, or of one of other parameters.
    """
    optimizer = run.optimizer
    plain = not run.seams.filled_by("make_optimizer") and isinstance(optimizer, Optimizer)
    if plain:
        saved = _groups_of(state, path)
        _divide(optimizer, run.model, [len(group["params"]) for group in saved], path)
        _check(optimizer, state, saved, path)
    run.seams.load_optimizer(optimizer, _as_held(optimizer, state, plain))


def _as_held(optimizer: Any, state: Any, plain: bool) -> Any:
    """Return a state whose tensors are read, and split over processes where their parameters are."""
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping):
        return state
    held: dict[Any, Any] = {}
    for group, was in zip(optimizer.param_groups, state["param_groups"]) if plain else ():
        held.update(zip(was["params"], group["params"]))
    parts = {number: _each(part, partial(fitted, like=held.get(number))) for number, part in state["state"].items()}
    return {**_each({key: value for key, value in state.items() if key != "state"}, as_tensor), "state": parts}


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested dicts, lists and tuples with every other value in them changed."""
    if isinstance(value, Mapping):
        return {key: _each(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_each(inner, change) for inner in value)
    return change(value)


def _groups_of(state: Any, path: Path) -> list[dict[str, Any]]:
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(groups, list) or not isinstance(state.get("state"), Mapping):
        groups = [None]
    if not all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups):
        raise CheckpointError(f"{path} holds no state of an optimizer.")
    return groups


def _divide(optimizer: Optimizer, model: nn.Module, sizes: list[int], path: Path) -> None:
    """Split the parameters of an optimizer into groups of these sizes, as this library or transformers does it."""
    own = [len(group["params"]) for group in optimizer.param_groups]
    if own == sizes:
        return
    for weight_decay in (1.0, 0.0):
        try:
            division = [group["params"] for group in parameter_groups(model, weight_decay)]
        except ArgumentError:
            division = []
        if [len(members) for members in division] == sizes and len(own) == len(sizes) and sum(own) == sum(sizes):
            for group, members in zip(optimizer.param_groups, division):
                group["params"] = members
            return
    raise CheckpointError(
        f"{path} has groups of {_listed(sizes)} parameters, and the optimizer of this run has groups of "
        f"{_listed(own)}: the model, or which of its parameters are frozen, is not what it was."
    )


def _listed(sizes: list[int]) -> str:
    return " and ".join(map(str, sizes)) or "no"


def _check(optimizer: Optimizer, state: dict[str, Any], saved: list[dict[str, Any]], path: Path) -> None:
    """Refuse the state of an optimizer of another kind, or of parameters of other shapes."""
    torchs = type(optimizer).__module__.startswith("torch.optim.")
    for group, was in zip(optimizer.param_groups, saved):
        lacking = [name for name in ("betas", "momentum", "clip_threshold") if name in group and name not in was]
        if lacking:
            raise CheckpointError(
                f"{path} is of another optimizer than {type(optimizer).__name__}: it has no {lacking[0]!r}. Say by "
                "`optim` which one it was."
            )
        for parameter, number in zip(group["params"], was["params"]) if torchs else ():
            parts = state["state"].get(number, {})
            if not isinstance(parts, Mapping):
                raise CheckpointError(f"{path} holds no state of an optimizer.")
            whole = getattr(parameter, "_orig_size", parameter.shape)  # fairscale's name for it, where it split one
            for name in SHAPED:
                shape = getattr(parts.get(name), "shape", whole)
                if shape != whole:
                    raise CheckpointError(
                        f"{path} has a {name!r} of shape {[*shape]} for a parameter of shape {[*whole]}: "
                        "the model is not what it was."
                    )
