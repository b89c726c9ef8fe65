"""What a process goes on from where the checkpoint was written by another number of processes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ...run import Run
from ..format import files
from ..format.codec import load_values
from ..format.manifest import random_files, read_manifest

logger = logging.getLogger(__name__)


_IN_ROWS = ("began", "order", "rows", "parts")


def in_rows(place: dict[str, Any]) -> dict[str, Any]:
    """Return what of a loader's place holds for batches of any size: which rows are done, and in which order they come.

    What it holds beside is of batches: how many were taken, the one that was fetched ahead, what made them.
    """
    return {name: place[name] for name in _IN_ROWS if name in place}


def adapted(own: dict[str, Any], run: Run, folder: Path) -> dict[str, Any]:
    """Return what this process goes on from: what it saved itself, or the part that holds for any number of processes.

    Where their number changed, a process that there was goes on drawing from its own random states, and a new one from
    those of the first; the training loss is the mean over the processes that were; and the batch that was fetched
    ahead, which is now another's in part, is fetched again.

    Args:
        own: what this process saved; {} if it was not there.
        run: the run; called on every process.
        folder: the checkpoint.
    """
    now = run.ranks.world_size
    before = read_manifest(folder).get("world_size", now) if (folder / files.MANIFEST).is_file() else now
    if before == now:
        return own
    of_all = [dict(load_values(path)) for path in random_files(folder).values()]  # a machine may lack those of others
    if not of_all:
        return own
    states = dict(own or of_all[0])
    losses = [of_one["losses"] for of_one in of_all]
    states["losses"] = {**losses[0], "sum": sum(part["sum"] for part in losses) / len(losses)}
    states["place"] = in_rows(of_all[0]["place"])
    if run.ranks.rank == 0:
        logger.warning(
            "%s was written by %d processes, and these are %d: the rows left of its epoch are shared out anew. "
            "Processes that there were go on with their random states, new ones with those of the first.",
            *(folder, before, now),
        )
    return states
