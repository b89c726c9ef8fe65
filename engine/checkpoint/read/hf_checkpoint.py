"""Checkpoints of transformers' Trainer: read as such, and without running any code that is in them.

What is pickled in them is read by torch's reader of weights only, which makes tensors and plain values and calls
nothing else. The arguments, `training_args.bin`, are not read at all: a run has its own.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....events.errors import CheckpointError
from ...run import Run
from ..format.files import FOREIGN_ARGUMENTS, LACKING, MANIFEST
from .optimizer_state import load_optimizer

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
RANDOM = "rng_state.pth"
RANDOM_OF_RANK = "rng_state_{rank}.pth"

_CALLED = re.compile(r"(?:GLOBAL|function) `?(?P<name>[A-Za-z_][\w.]*)")


def is_foreign(folder: Path) -> bool:
    """Say whether a checkpoint is one of transformers' Trainer."""
    if (folder / MANIFEST).exists():
        return False
    names = (OPTIMIZER, SCHEDULER, RANDOM, FOREIGN_ARGUMENTS, RANDOM_OF_RANK.format(rank=0))
    return any((folder / name).exists() for name in names)


def load_plain(path: Path, allowed: Sequence[Any] = ()) -> Any:
    """Read a file of torch that holds tensors, numbers, strings, and dicts, lists and tuples of such.

    Args:
        path: the file.
        allowed: what it may call beside what makes those.

    Raises:
        CheckpointError: if it is damaged, or would call anything else, naming that. Nothing of it was called then.
    """
    try:
        with torch.serialization.safe_globals([*allowed]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        called = _CALLED.search(str(error))
        if called is None:
            raise CheckpointError(f"{path} cannot be read: {_reason(error)}") from error
        raise CheckpointError(
            f"{path} is not read: it wants to call {called['name']}, and a checkpoint has nothing to call. "
            "Nothing of it was run. Do not use it unless you know who wrote it."
        ) from error


def _reason(error: Exception) -> str:
    said = str(error)
    return said.rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0] or type(error).__name__


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read weights that are pickled, as `pytorch_model.bin`.

    Raises:
        CheckpointError: if the file holds anything else.
    """
    state = load_plain(path)
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise CheckpointError(f"{path} holds no weights: they are tensors by name.")
    return dict(state)


def restore_optimizer(run: Run, folder: Path) -> None:
    """Load optimizer, schedule and scaler.

    Raises:
        CheckpointError: if one of them is missing, damaged, or does not fit.
    """
    wanted = [(OPTIMIZER, run.optimizer), (SCHEDULER, run.lr_scheduler), (SCALER, run.seams.scaler)]
    for name, target in wanted:
        path = folder / name
        if target is None:
            continue
        if not path.is_file():
            if run.args.resume_partial:
                continue
            raise CheckpointError(f"{folder} has no {name}, {LACKING}")
        state = load_plain(path)
        try:
            if name == OPTIMIZER:
                load_optimizer(run, state, path)
            else:
                target.load_state_dict(_part_for(target, state))
        except CheckpointError:
            raise
        except Exception as error:
            kind = type(target).__name__
            raise CheckpointError(f"{path} does not fit the {kind} of this run: {_reason(error)}") from error


def _part_for(target: Any, state: Any) -> dict[str, Any]:
    """Return what of a state a schedule or scaler has itself: torch would set whatever else is in it."""
    own = target.state_dict()
    if not isinstance(state, Mapping) or (own and not own.keys() & state.keys()):
        raise ValueError("it is of another kind")
    part = {name: state[name] for name in own if name in state}
    if "lr_lambdas" in own:  # the functions are built again, from the arguments
        part["lr_lambdas"] = [None] * len(own["lr_lambdas"])
    return part


def read_own(run: Run, folder: Path) -> dict[str, Any]:
    """Return the random states of this process; {} if the checkpoint is of another number of processes.

    Raises:
        CheckpointError: if it has none at all, or they are damaged.
    """
    rank, world_size = run.ranks.rank, run.ranks.world_size
    path = folder / (RANDOM if world_size == 1 else RANDOM_OF_RANK.format(rank=rank))
    if path.is_file():
        return _random_states(load_plain(path, _arrays()), path)
    if not [*folder.glob("rng_state*.pth")]:
        if run.args.resume_partial:
            return {}
        raise CheckpointError(f"{folder} has no {path.name}, {LACKING}")
    logger.warning(
        "%s was written by another number of processes than %d: it has no %s, and random draws go on from the seed.",
        *(folder, world_size, path.name),
    )
    return {}


def _arrays() -> list[Any]:
    """Return what makes the arrays in a state of numpy's generator, as it is called in numpy 1 and 2."""
    make = np.zeros(0).__reduce__()[0]
    return [
        *((make, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
        *(np.ndarray, np.dtype, type(np.dtype(np.uint32))),
    ]


def _random_states(saved: Any, path: Path) -> dict[str, Any]:
    """Return saved states under the names used here, once generators have taken them."""
    try:
        states = {"python": saved["python"], "numpy": saved["numpy"], "torch": saved["cpu"]}
        random.Random().setstate(states["python"])
        np.random.RandomState().set_state(states["numpy"])
        torch.Generator().set_state(states["torch"])
        if "cuda" in saved:
            of_devices = saved["cuda"]  # of all devices, or of the one that was used
            states["cuda"] = [of_devices] if isinstance(of_devices, torch.Tensor) else list(of_devices)
    except (TypeError, KeyError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{path} holds no states of random generators: {error!r}") from error
    return states


def say_what_is_left_out(saved: Mapping[str, Any], folder: Path) -> None:
    """Tell that the states of transformers' callbacks are not given to anybody here."""
    states = saved.get("stateful_callbacks")
    names = [name for name in states if name != "TrainerControl"] if isinstance(states, Mapping) else []
    if names:
        logger.info("%s is of transformers: the states of its callbacks are left out: %s.", folder, ", ".join(names))
