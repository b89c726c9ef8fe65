"""Resuming with another world size than the world size of the checkpoint."""

from __future__ import annotations

import logging
from typing import Any

from ..format.codec import load_values
from ..protocols import ResumableRun
from .saved import SavedCheckpoint

logger = logging.getLogger(__name__)

_SAMPLE_ENTRIES = ("began", "order", "rows", "parts", "workers_epoch")


def position_in_samples(place: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a loader position that do not depend on the batch size.

    These entries are:

    - `rows`: the number of samples that are done, by worker;
    - `parts`: the attribute `Loader.parts` at the save;
    - `order`: the state of the sampler;
    - `began`: the RNG states at the start of the epoch;
    - `workers_epoch`: the epoch in which persistent workers started.
    """
    return {name: place[name] for name in _SAMPLE_ENTRIES if name in place}


def adapt_to_world_size(own: dict[str, Any], run: ResumableRun, checkpoint: SavedCheckpoint) -> dict[str, Any]:
    """Return the values that this rank resumes with. All ranks must call this function.

    If the world size is the same as at the save, return `own`. Also return `own` if the checkpoint does not record a
    world size, or has no RNG states. Otherwise, return `own` with these changes:

    - If this rank saved no values, it gets the values of the lowest rank that saved.
    - Each loss sum is the mean over the ranks that saved.
    - The loader position comes from the lowest rank that saved, without entries that depend on the batch size.

    With `save_on_each_node`, only the ranks that saved on this machine count.

    Args:
        own: the values that this rank saved, such as RNG states and loader position; {} if this rank saved none.
        run: the run.
        checkpoint: the checkpoint.
    """
    now, before = run.ranks.world_size, checkpoint.world_size
    if before is None or before == now:
        if before is None and not own and checkpoint.state_files.has_rng_states():
            logger.warning(
                "%s was not written with world size %d: it has no %s. The random number generators of this rank start "
                "from the seed.",
                checkpoint.path,
                now,
                checkpoint.state_files.rng_path(run.ranks.rank, now).name,
            )
        return own
    # With `save_on_each_node`, a machine has the files of its own ranks only.
    of_ranks = [dict(load_values(path, folder=checkpoint)) for path in checkpoint.rng_files().values()]
    if not of_ranks:
        return own
    losses = [of_rank["losses"] for of_rank in of_ranks]
    if run.ranks.rank == 0:
        logger.warning(
            "%s was written with world size %d and resumes with world size %d. The samples left in its epoch are "
            "divided among the ranks. Ranks with saved RNG states restore them. New ranks take those of rank 0, or of "
            "the lowest rank that saved on their machine.",
            checkpoint.path,
            before,
            now,
        )
    return {
        **(own or of_ranks[0]),
        "losses": mean_losses(losses),
        "place": position_in_samples(of_ranks[0]["place"]),
    }


def mean_losses(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the loss sums that the ranks saved, for another world size. Each sum becomes the mean over the ranks."""
    found = {**of_ranks[0], "sum": sum(part["sum"] for part in of_ranks) / len(of_ranks)}
    if windows := found.get("windows"):
        found["windows"] = {name: mean_losses([part["windows"][name] for part in of_ranks]) for name in windows}
    return found
