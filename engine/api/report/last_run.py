"""Which files of an output folder belong to the last run. Earlier runs may have written to the same folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoint.format.files import RUN_STATUS
from ...checkpoint.read.saved import SavedCheckpoint


@dataclass(frozen=True)
class LastRun:
    """The last run in a folder."""

    run_id: str | None = None
    """The id of the run. An empty text if the run ended before it got an id. None if no file has an id. Then all files
    count as files of the run."""
    began: float = 0.0
    """When the run began, in seconds since 1970; 0 if this is not known."""
    step: int | None = None
    """The last step in the status file of the run; None without such a file."""
    written: float = 0.0
    """When the run wrote its status file, in seconds since 1970."""

    @classmethod
    def of(
        cls,
        status: Mapping[str, Any],
        heads: Sequence[Mapping[str, Any]],
        checkpoints: Sequence[SavedCheckpoint],
        run_id: str = "",
    ) -> LastRun:
        """Find the last run: the run that wrote the newest of the given files.

        Args:
            status: the content of the status file; {} without one.
            heads: the first record of each session of the recording.
            checkpoints: the checkpoints in the folder.
            run_id: the id of the run, if it is known.
        """
        if status and "run_id" not in status:  # of an earlier release
            return cls()
        found = [(float(status["time"]), str(status["run_id"] or ""))] if status else []
        found += [(_number(head.get("time")), str(head["run"])) for head in heads[-1:] if head.get("run")]
        found += [(saved.time, saved.run_id) for saved in checkpoints if saved.run_id]
        if not found:
            return cls(run_id or None)
        run_id = run_id or max(found)[1]
        if status and (status["run_id"] or "") == run_id:
            return cls(run_id, _number(status.get("began")), int(status["step"]), float(status["time"]))
        return cls(run_id)

    @property
    def has_status(self) -> bool:
        """Whether the status file is of this run."""
        return self.step is not None

    def owns(self, run_id: str) -> bool:
        """Return whether a file with this run id is of the run. For a file without an id, return True."""
        return self.run_id is None or not run_id or run_id == self.run_id

    def wrote(self, path: Path) -> bool:
        """Return whether the run may have written a file without a run id: the file changed since the run began.

        File times may be too early: the clock of a file server may be late, and an archive may restore the times of
        another time zone. The status file contains the time of its own write (`written`). For example, if the
        file time of the status file is 60 seconds before `written`, the method adds 60 seconds to the file time of
        `path` before the comparison.
        """
        began = self.began
        if self.has_status:
            with suppress(OSError):
                began += min(0.0, path.with_name(RUN_STATUS).stat().st_mtime - self.written)
        with suppress(OSError):
            return path.stat().st_mtime >= began
        return False

    def saved(self, checkpoint: SavedCheckpoint) -> bool:
        """Return whether a checkpoint is of the run.

        A run may resume from an earlier step than the step of its newest checkpoint. The newer checkpoints then do not
        count.
        """
        if not self.owns(checkpoint.run_id):
            return False
        left_behind = bool(self.step) and checkpoint.step > (self.step or 0)
        if not checkpoint.run_id:  # of another library, or of an overridden save
            return not (self.run_id and self.has_status and (left_behind or not self.step))
        return not left_behind or checkpoint.time >= self.written


def _number(value: Any) -> float:
    """Return a time value from a JSON file as a float; 0 if the value is missing or not a number."""
    return float(value) if isinstance(value, (int, float)) else 0.0
