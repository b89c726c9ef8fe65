"""Resuming from a checkpoint that lacks a part of the training state. The argument `resume_partial` allows this."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ....events.state import TrainerState
from ..format import files
from ..protocols import ResumableRun
from .optimizer_state import targets_of
from .saved import SavedCheckpoint
from .state_files import StatePart
from .verify import Check

logger = logging.getLogger(__name__)

_OPTIONAL = (
    files.OPTIMIZER,
    files.SCHEDULER,
    files.SCALER,
    files.RANDOM.format(rank="*"),
    "optimizer-*-of-*.safetensors",
)


def check_for(run: ResumableRun) -> Check:
    """Return the settings with which a run verifies a checkpoint before it resumes."""
    return Check(
        optional=_OPTIONAL,
        partial=run.args.resume_partial,
        # With several ranks, one rank verifies while the others wait, and each rank loads its files itself.
        keep_tensors=run.ranks.single_process,
    )


def warn_of_missing_state(run: ResumableRun, checkpoint: SavedCheckpoint) -> None:
    """With `resume_partial`, warn about the parts of the training state that the checkpoint lacks.

    If the checkpoint lacks exactly one of optimizer and schedule, also copy the current learning rates of
    `run.lr_scheduler` to `run.optimizer`. Without `resume_partial`, do nothing.
    """
    if not run.args.resume_partial:
        return
    missing = checkpoint.missing_parts()
    fresh = [part for part, target in targets_of(run).items() if target is not None and part in missing]
    if (StatePart.OPTIMIZER in fresh) != (StatePart.SCHEDULER in fresh):
        _take_scheduled_rates(run)
    names = [part.value for part in fresh]
    ranks = run.ranks
    if not checkpoint.state_files.has_rng_states() or checkpoint.lacks_rng_states_of(ranks.rank, ranks.world_size):
        names.append("random draws")
    if names:
        logger.warning(
            "%s lacks a part of the training state. `resume_partial` allows this, and these start fresh: %s.",
            checkpoint.path,
            ", ".join(names),
        )


def _take_scheduled_rates(run: ResumableRun) -> None:
    """Set the learning rates of the optimizer to the current rates of the schedule."""
    for group, rate in zip(run.optimizer.param_groups, run.lr_scheduler.get_last_lr()):
        group["lr"] = rate


def warn_of_other_settings(saved: Mapping[str, Any], state: TrainerState, schedule: Mapping[str, int]) -> None:
    """Warn if batch size, gradient accumulation, or intervals such as `save_steps` differ from the checkpoint.

    Args:
        saved: the trainer state of the checkpoint.
        state: the trainer state of the resumed run.
        schedule: the `gradient_accumulation_schedule` of the resumed run, with strings as keys.
    """
    names = ("train_batch_size", "logging_steps", "eval_steps", "save_steps")
    changes = [
        f"{name} was {saved[name]} and is {getattr(state, name)}"
        for name in names
        if saved.get(name) is not None and saved[name] != getattr(state, name)
    ]
    name = "gradient_accumulation_schedule"
    if saved.get(name, schedule) != schedule:  # earlier versions did not save it
        changes.append(f"{name} was {saved[name] or None} and is {schedule or None}")
    if changes:
        logger.warning("The run resumes with settings that differ from its checkpoint: %s.", ", ".join(changes))
