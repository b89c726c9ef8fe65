"""The interface to read the training state from the files of a checkpoint.

Each layout of the files implements it: `native_checkpoint` for checkpoints of trainbus, `hf_checkpoint` for checkpoints
of transformers' Trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Protocol


class StatePart(Enum):
    """A part of the training state that one file holds. Messages use the value of a member as the name of the part."""

    OPTIMIZER = "the optimizer"
    SCHEDULER = "the schedule"
    SCALER = "the loss scaler"


class StateFiles(Protocol):
    """The training state in a checkpoint folder, in the layout of one library."""

    resumes_loader_exactly: bool
    """Whether the RNG states were saved together with the position of the data loader.

    If not, a run that resumes in the middle of an epoch restores the RNG states when it takes its first batches.
    """

    def path_of(self, part: StatePart) -> Path:
        """Return the file of a part, whether it exists or not."""

    def has(self, part: StatePart) -> bool:
        """Return whether a part is there, with all of its files."""

    def load(self, part: StatePart) -> Any:
        """Read a part and return its state dict.

        Raises:
            CheckpointError: if the file is damaged.
        """

    def restore(self, part: StatePart, target: Any, load: Callable[[Any], object]) -> None:
        """Read a part and pass its state to `load`, which loads it into `target`.

        Raises:
            CheckpointError: if the file is damaged, or its state does not fit the target.
        """

    def own(self, rank: int, world_size: int) -> dict[str, Any]:
        """Read the values that only `rank` saved: RNG states, loader position, loss sums. Return {} if it saved none.

        Raises:
            CheckpointError: if the file is damaged.
        """

    def rng_path(self, rank: int, world_size: int) -> Path:
        """Return the path of the file with the RNG states of a rank. The file need not exist."""

    def has_rng_states(self) -> bool:
        """Return whether there are RNG states of any rank."""

    def ignored_callbacks(self, state: Mapping[str, Any]) -> list[str]:
        """Return the names of the callbacks in the trainer state `state` that trainbus cannot restore."""
