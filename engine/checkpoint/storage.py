"""The storage of a run: where the run writes, lists and deletes its checkpoints.

A training uses `Disk`. A preview uses a storage that writes no files and only lists the checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from .format.files import CheckpointRecord
from .protocols import SavableRun, SavingRanks
from .read.listing import list_checkpoints
from .read.saved import SavedCheckpoint
from .write.commit import remove
from .write.disk_space import check_writable
from .write.host_copies import HostCopies
from .write.save import write_checkpoint
from .write.snapshot import Snapshot, take_snapshot


class Storage(Protocol):
    """The interface of a storage for checkpoints. `Disk` implements it. The callback `Checkpoint` calls the methods."""

    def check(self, run: Any) -> None:
        """Raise a CheckpointError if checkpoints cannot be written."""

    def snapshot(
        self, run: Any, checkpoint: CheckpointRecord, callbacks: dict[str, Any], copies: HostCopies | None
    ) -> Snapshot:
        """Collect everything that a resume from `checkpoint` needs. `take_snapshot` describes the parameters."""

    def write(self, run: Any, snapshot: Snapshot, ranks: SavingRanks) -> None:
        """Write a checkpoint. All `ranks` write together. If the write fails, the storage does not change."""

    def checkpoints(self, run: Any) -> list[Any]:
        """Return the undamaged checkpoints of this run, oldest first. Checkpoints of other runs are left out."""

    def holds(self, path: str) -> bool:
        """Return whether the checkpoint with this path exists."""

    def deletes(self, run: Any) -> bool:
        """Return whether this rank deletes checkpoints of the run."""

    def remove(self, checkpoint: Any) -> None:
        """Delete a checkpoint."""


class Disk:
    """The storage that writes checkpoints into the output folder of the run."""

    def check(self, run: SavableRun) -> None:
        """Raise a CheckpointError if this rank writes checkpoints and cannot write into the output folder."""
        if run.args.should_save:
            check_writable(run.args.output_path, leave=not run.ranks.single_process)

    def snapshot(
        self, run: SavableRun, checkpoint: CheckpointRecord, callbacks: dict[str, Any], copies: HostCopies | None
    ) -> Snapshot:
        """Collect everything that a resume from `checkpoint` needs. `take_snapshot` describes the parameters."""
        return take_snapshot(run, checkpoint, callbacks, copies)

    def write(self, run: SavableRun, snapshot: Snapshot, ranks: SavingRanks) -> None:
        """Write a checkpoint. All `ranks` write together. If the write fails, the storage does not change."""
        write_checkpoint(run, snapshot, ranks)

    def checkpoints(self, run: SavableRun) -> list[SavedCheckpoint]:
        """Return the checkpoints of this run that `list_checkpoints` finds, lowest step first."""
        return [saved for saved in list_checkpoints(run.args.output_path) if saved.run_id == run.run_id]

    def holds(self, path: str) -> bool:
        """Return whether the folder of a checkpoint exists."""
        return Path(path).is_dir()

    def deletes(self, run: SavableRun) -> bool:
        """Return whether this rank writes and deletes checkpoints."""
        return run.args.should_save

    def remove(self, checkpoint: SavedCheckpoint) -> None:
        """Delete a checkpoint."""
        remove(checkpoint)
