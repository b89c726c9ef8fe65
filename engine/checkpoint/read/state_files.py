"""The interface to read the training state from the files of a checkpoint.

`NativeStateFiles` implements the interface for checkpoints of trainbus, and `HFStateFiles` for checkpoints of
transformers' Trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Protocol


class StatePart(Enum):
    """A part of the training state that has its own file. The value of a member is the name of the part in messages."""

    OPTIMIZER = "the optimizer"
    SCHEDULER = "the schedule"
    SCALER = "the loss scaler"


class StateFiles(Protocol):
    """The training state in a checkpoint folder. `NativeStateFiles` and `HFStateFiles` implement this protocol."""

    resumes_loader_exactly: bool
    """Whether the RNG states were saved together with the position of the data loader.

    If False, a run that resumes in the middle of an epoch restores the RNG states after it fetches the batches of its
    first step, as transformers does.
    """

    def path_of(self, part: StatePart) -> Path:
        """Return the path of the file of a part. The file need not exist."""

    def has(self, part: StatePart) -> bool:
        """Return whether all files of a part of the training state exist."""

    def load(self, part: StatePart) -> Any:
        """Read a part and return its state dict.

        Raises:
            CheckpointError: if the file is damaged.
        """

    def restore(self, part: StatePart, target: Any, load: Callable[[Any], object]) -> None:
        """Read a part and pass its state dict to `load`.

        Args:
            part: the part of the training state.
            target: the object that `load` changes, such as the schedule.
            load: a function that loads a state dict into `target`.

        Raises:
            CheckpointError: if the file is damaged, or if its state does not fit `target`.
        """

    def own(self, rank: int, world_size: int) -> dict[str, Any]:
        """Read the values that only `rank` saved: RNG states, loader position, loss sums; {} if `rank` saved none.

        Raises:
            CheckpointError: if the file is damaged.
        """

    def rng_path(self, rank: int, world_size: int) -> Path:
        """Return the path of the file with the RNG states of a rank. The file need not exist."""

    def has_rng_states(self) -> bool:
        """Return whether the checkpoint has the RNG states of at least one rank."""

    def ignored_callbacks(self, state: Mapping[str, Any]) -> list[str]:
        """Return the names of the callbacks in the trainer state `state` that trainbus cannot restore."""
