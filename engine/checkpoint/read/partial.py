"""Going on from a checkpoint that lacks a part, where the user allows it: what is not there begins anew."""

from __future__ import annotations

import logging
from pathlib import Path

from ...distributed.ranks import Ranks
from ...run import Run
from ..format import files
from ..format.hashing import digest_of
from ..format.manifest import random_files, read_manifest
from ..format.sharded import is_complete
from . import hf_checkpoint as foreign
from .verify import Check

logger = logging.getLogger(__name__)

_OPTIMIZER, _SCHEDULE, _SCALER = "the optimizer", "the schedule", "the loss scaler"
_PARTS = (
    (_OPTIMIZER, files.OPTIMIZER, foreign.OPTIMIZER),
    (_SCHEDULE, files.SCHEDULER, foreign.SCHEDULER),
    (_SCALER, files.SCALER, foreign.SCALER),
)
_OF_RUN = (
    *(files.OPTIMIZER, files.SCHEDULER, files.SCALER, files.RANDOM.format(rank="*")),
    "optimizer-*-of-*.safetensors",
)


def check_for(run: Run) -> Check:
    """Return how a checkpoint is checked that a run is to go on from."""
    return Check(
        # Of several processes the others would wait while this one reads what each of them loads for itself.
        read=run.contents.digest_of if run.ranks.single_process else digest_of,
        of_run=_OF_RUN,
        partial=run.args.resume_partial,
    )


def lacking(folder: Path) -> list[str]:
    """Return what of a run a checkpoint lacks, in words; a run that scaled no loss has no scaler."""
    return [what for what, *names in _PARTS if not any(is_complete(folder / name) for name in names)]


def lacks_own(ranks: Ranks, folder: Path) -> bool:
    """Say whether a process wrote random states into a checkpoint, and they are not there, but those of others are."""
    there = random_files(folder) if (folder / files.MANIFEST).exists() else {}
    if not there or ranks.rank in there:
        return False
    return read_manifest(folder).get("world_size") == ranks.world_size


def begin_the_rest_anew(run: Run, folder: Path) -> None:
    """Warn, once, of what the checkpoint lacks that a run goes on from, and have what is there fit what is not."""
    if not run.args.resume_partial:
        return
    needed = (run.optimizer, run.lr_scheduler, run.seams.scaler)
    lacks = lacking(folder)
    anew = [what for (what, *_), part in zip(_PARTS, needed) if part is not None and what in lacks]
    if (_OPTIMIZER in anew) != (_SCHEDULE in anew):
        _take_rates(run)
    none = not (random_files(folder) or any(folder.glob("rng_state*.pth")))
    if none or lacks_own(run.ranks, folder):
        anew.append("random draws")
    if anew:
        logger.warning(
            "%s lacks a part of its run. `resume_partial` allows it, and these begin anew: %s.", folder, ", ".join(anew)
        )


def _take_rates(run: Run) -> None:
    """Give the optimizer the learning rates of the schedule, where only one of the two is from the checkpoint."""
    for group, rate in zip(run.optimizer.param_groups, run.lr_scheduler.get_last_lr()):
        group["lr"] = rate
