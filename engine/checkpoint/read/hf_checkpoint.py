"""Reading checkpoints of transformers' Trainer, so that a run can resume from them.

The pickled files may contain code. Reading does not run this code.

The pickled arguments, `training_args.bin`, are not read. The resumed run uses the arguments of its own program.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....events.errors import CheckpointError
from ...distributed.memory_errors import lacks_memory
from ..format.files import HF_ARGUMENTS, MANIFEST
from ..format.folder import CheckpointFolder
from .fitting import fitting
from .pickled import load_plain
from .state_files import StatePart

OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
RANDOM = "rng_state.pth"
RANDOM_OF_RANK = "rng_state_{rank}.pth"

_NAMES = {StatePart.OPTIMIZER: OPTIMIZER, StatePart.SCHEDULER: SCHEDULER, StatePart.SCALER: SCALER}


def is_hf_checkpoint(path: Path) -> bool:
    """Return whether transformers' Trainer wrote a checkpoint: it has no manifest, but a file like `optimizer.pt`."""
    if (path / MANIFEST).exists():
        return False
    names = (OPTIMIZER, SCHEDULER, RANDOM, HF_ARGUMENTS, RANDOM_OF_RANK.format(rank=0))
    return any((path / name).exists() for name in names)


class HFStateFiles:
    """The training state in a checkpoint of transformers' Trainer: pickled torch files."""

    resumes_loader_exactly = False

    def __init__(self, folder: CheckpointFolder) -> None:
        """Create an object that reads the files of `folder`."""
        self._path = folder.path

    def path_of(self, part: StatePart) -> Path:
        return self._path / _NAMES[part]

    def has(self, part: StatePart) -> bool:
        return self.path_of(part).is_file()

    def load(self, part: StatePart) -> Any:
        return load_plain(self.path_of(part))

    def restore(self, part: StatePart, target: Any, load: Callable[[Any], object]) -> None:
        state = self.load(part)
        with fitting(target, self.path_of(part)):
            load(state if part is StatePart.OPTIMIZER else _known_entries(target, state))

    def own(self, rank: int, world_size: int) -> dict[str, Any]:
        path = self.rng_path(rank, world_size)
        return _rng_states(load_plain(path, _array_types()), path) if path.is_file() else {}

    def rng_path(self, rank: int, world_size: int) -> Path:
        return self._path / (RANDOM if world_size == 1 else RANDOM_OF_RANK.format(rank=rank))

    def has_rng_states(self) -> bool:
        return any(self._path.glob("rng_state*.pth"))

    def ignored_callbacks(self, state: Mapping[str, Any]) -> list[str]:
        states = state.get("stateful_callbacks")
        return [name for name in states if name != "TrainerControl"] if isinstance(states, Mapping) else []


def _known_entries(target: Any, state: Any) -> dict[str, Any]:
    """Return the entries of the saved state `state` whose names are also in `target.state_dict()`.

    `target` is a scheduler or a loss scaler. `load_state_dict` of a torch scheduler sets every entry as an attribute.
    An unknown entry would add an attribute.

    Raises:
        ValueError: if `state` is the state of another kind of object.
    """
    own = target.state_dict()
    if not isinstance(state, Mapping) or (own and not own.keys() & state.keys()):
        raise ValueError("it is the state of another kind of object")
    known = {name: state[name] for name in own if name in state}
    if "lr_lambdas" in own:  # the functions are built from the arguments
        known["lr_lambdas"] = [None] * len(own["lr_lambdas"])
    return known


def _array_types() -> list[Any]:
    """Return the functions and types that a pickled numpy RNG state may call, under their names in numpy 1 and 2.

    The parameter `allowed` of `load_plain` takes this list.
    """
    reconstruct = np.zeros(0).__reduce__()[0]
    return [
        (reconstruct, "numpy.core.multiarray._reconstruct"),
        (reconstruct, "numpy._core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        type(np.dtype(np.uint32)),
    ]


def _rng_states(saved: Any, path: Path) -> dict[str, Any]:
    """Return `saved`, the RNG states in the file `path` of transformers, under the names that trainbus uses.

    To check the states of python, numpy and torch, the function loads the states into new generators.

    Raises:
        CheckpointError: if a state is missing or invalid.
    """
    try:
        states = {"python": saved["python"], "numpy": saved["numpy"], "torch": saved["cpu"]}
        random.Random().setstate(states["python"])
        np.random.RandomState().set_state(states["numpy"])
        torch.Generator().set_state(states["torch"])
        if "cuda" in saved:
            of_devices = saved["cuda"]  # of all devices, or of the only one
            states["cuda"] = [of_devices] if isinstance(of_devices, torch.Tensor) else list(of_devices)
    except (TypeError, KeyError, ValueError, RuntimeError, OverflowError) as error:
        if lacks_memory(error):
            raise
        raise CheckpointError(f"{path} has no valid RNG states: {error!r}. Resume from another checkpoint.") from error
    return states
