"""Functions of the old module `engine.checkpoint.store`, for older programs. New code uses `SavedCheckpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ..seams import LoadModel, load_model
from .protocols import ResumableRun
from .read import optimizer_state
from .read.saved import SavedCheckpoint
from .write.save import on_all_ranks as together
from .write.save import write_checkpoint as write
from .write.snapshot import Snapshot
from .write.snapshot import take_snapshot as take

__all__ = [
    "Snapshot",
    "callback_states",
    "load_weights",
    "read_own",
    "read_state",
    "restore_optimizer",
    "take",
    "together",
    "write",
]


def load_weights(model: nn.Module, folder: Path, load: LoadModel = load_model) -> None:
    """Load the weights of a checkpoint into a model. See `SavedCheckpoint.load_weights`."""
    SavedCheckpoint.open(folder).load_weights(model, load)


def read_state(folder: Path) -> dict[str, Any]:
    """Read the trainer state of a checkpoint. See `SavedCheckpoint.state`."""
    return SavedCheckpoint.open(folder).state


def restore_optimizer(run: ResumableRun, folder: Path) -> None:
    """Load optimizer, schedule and loss scaler of a run. See `engine.checkpoint.read.optimizer_state`."""
    optimizer_state.restore_optimizer(run, SavedCheckpoint.open(folder))


def read_own(run: ResumableRun, folder: Path) -> dict[str, Any]:
    """Read the values that only this rank saved, such as its RNG states. See `SavedCheckpoint.own`."""
    return SavedCheckpoint.open(folder).own(run.ranks.rank, run.ranks.world_size)


def callback_states(folder: Path) -> dict[str, Any]:
    """Read the states of the callbacks in a checkpoint, by callback id. See `SavedCheckpoint.callback_states`."""
    return SavedCheckpoint.open(folder).callback_states()
