"""Listing the checkpoints in a folder, and finding the newest good checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from ..format.files import RUN_STATUS, parse_hidden, step_of
from ..write.commit import put_back
from .saved import SavedCheckpoint
from .verify import STRICT, Check


class Dated(Protocol):
    """The values that sort checkpoints from new to old. `SavedCheckpoint` and `Candidate` implement this protocol."""

    @property
    def step(self) -> int:
        """The number of completed steps at the save."""

    @property
    def run_id(self) -> str:
        """The id of the run that wrote the checkpoint."""

    @property
    def time(self) -> float:
        """When the checkpoint was written, in seconds since 1970."""


D = TypeVar("D", bound=Dated)


def survey(output_dir: str | Path) -> list[SavedCheckpoint]:
    """Return all checkpoints in a folder, also damaged ones, lowest step first. Read only the names of the folders."""
    directory = Path(output_dir)
    found = [
        SavedCheckpoint.open(path)
        for path in (directory.iterdir() if directory.is_dir() else ())
        if step_of(path) is not None and path.is_dir()
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def list_checkpoints(output_dir: str | Path) -> list[SavedCheckpoint]:
    """List the checkpoints in a folder for which `problems(full=False)` returns no problem, lowest step first."""
    return [checkpoint for checkpoint in survey(output_dir) if not checkpoint.problems(full=False)]


def unfinished(output_dir: str | Path) -> list[Path]:
    """Return the hidden folders of checkpoints that killed runs were writing, replacing or deleting."""
    directory = Path(output_dir)
    folders = sorted(directory.iterdir()) if directory.is_dir() else []
    return [path for path in folders if (hidden := parse_hidden(path)) is not None and hidden.abandoned]


def last_run(output_dir: str | Path) -> str:
    """Return the id of the run that began last in a folder, from the status file; empty if it is unknown."""
    with suppress(OSError, ValueError):
        found = json.loads((Path(output_dir) / RUN_STATUS).read_text(encoding="utf-8"))
        run_id = found.get("run_id") if isinstance(found, dict) else None
        return run_id if isinstance(run_id, str) else ""
    return ""


def newest_first(checkpoints: Iterable[D], last: str = "") -> list[D]:
    """Return checkpoints sorted by run, most recent run first, and within a run by step, highest step first.

    Args:
        checkpoints: the checkpoints, in any order.
        last: the id of the run that is the most recent one. If it is empty, or if this run has no checkpoint, the run
            with the most recent save is the most recent one.
    """
    checkpoints = list(checkpoints)
    last_of: dict[str, tuple[float, int]] = {}
    for checkpoint in checkpoints:
        written = (checkpoint.time, checkpoint.step)
        last_of[checkpoint.run_id] = max(written, last_of.get(checkpoint.run_id, written))
    return sorted(
        checkpoints,
        key=lambda each: (bool(last) and each.run_id == last, last_of[each.run_id], each.step),
        reverse=True,
    )


def newest_good(
    checkpoints: Iterable[SavedCheckpoint], check: Check = STRICT, last: str = ""
) -> tuple[SavedCheckpoint | None, list[SavedCheckpoint]]:
    """Find the newest good checkpoint. Every file is read and compared with its hash.

    Args:
        checkpoints: the checkpoints to check, in any order.
        check: which files may be missing.
        last: the id of the most recent run, as in `newest_first`.

    Returns:
        Two values: the newest good checkpoint (None if no checkpoint is good), and the damaged checkpoints that are
        newer.
    """
    damaged: list[SavedCheckpoint] = []
    for checkpoint in newest_first(checkpoints, last):
        if not checkpoint.problems(check=check):
            return checkpoint, damaged
        damaged.append(checkpoint)
    return None, damaged


def get_last_checkpoint(folder: str | Path) -> str | None:
    """Return the path of the newest good checkpoint in a folder; None if there is none.

    Every file of the checkpoint is read and compared with its hash. `resume_from_checkpoint=True` selects the same
    checkpoint. With `resume_partial=True`, `resume_from_checkpoint=True` may select a newer checkpoint that lacks a
    part of the training state.
    """
    with suppress(OSError):  # a read-only folder can still be read
        put_back(Path(folder))
    good, _ = newest_good(list_checkpoints(folder), last=last_run(folder))
    return None if good is None else str(good.path)
