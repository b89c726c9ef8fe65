"""The length of a run in steps and epochs, from the arguments and the size of the data."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...events.errors import ArgumentError, DataError


@dataclass(frozen=True)
class RunPlan:
    """The length of a run: steps, epochs, batches and samples."""

    max_steps: int
    """Optimizer steps of the whole run."""
    epochs: int
    """Epochs of the run, rounded up: the last may be partial. `sys.maxsize` if the data has no length."""
    steps_per_epoch: int
    """Optimizer steps of a whole epoch; `max_steps` if the data has no length."""
    batches_per_epoch: int
    """Batches of one rank in a whole epoch; the batches of the whole run if the data has no length."""
    total_batch_size: int
    """Samples of one optimizer step, over all ranks."""
    num_examples: int
    """Samples of the dataset. If only the loader has a length: samples of one rank in an epoch, as in transformers. If
    the loader has no length: samples of the whole run."""
    num_train_samples: float
    """Samples to train on in the whole run, for the throughput in the summary."""
    epoch_rows: int = 0
    """Samples that all ranks together read in an epoch; if epochs differ, the largest number. The position in an epoch
    never exceeds this number."""
    offset: int = 0
    """How many steps later than planned an epoch ends; negative if it ends earlier. It is 0 unless the run resumed with
    another batch size in the middle of an epoch."""

    @property
    def endless(self) -> bool:
        """Whether the data has no length. The run then ends after `max_steps` steps."""
        return self.epochs == sys.maxsize

    def moved(self, offset: int, step: int, epoch: int, by_steps: bool) -> RunPlan:
        """Return the plan of a run that resumed with another batch size in the middle of an epoch.

        Args:
            offset: how many steps later than planned the current epoch ends; negative if it ends earlier. All later
                epochs move by the same number of steps.
            step: optimizer steps that are done.
            epoch: the current epoch, from 0.
            by_steps: True keeps the number of steps, which the user set. False keeps the number of epochs.
        """
        if self.endless or not offset:
            return self
        if by_steps:
            needed = math.ceil((self.max_steps - offset) / self.steps_per_epoch)
            return replace(self, offset=offset, epochs=max(epoch + 1, needed))
        return replace(self, offset=offset, max_steps=max(step, self.max_steps + offset))

    def in_steps(self, interval: float) -> float:
        """Convert an interval to a number of steps. An interval below 1 is a fraction of `max_steps`, rounded up."""
        return math.ceil(self.max_steps * interval) if interval < 1 else int(interval)


def limited(limit: float | None, batches: int | None) -> int | None:
    """Return the number of batches that a limit allows; None if the limit leaves out no batch.

    Args:
        limit: a number of batches, or a fraction of `batches` if `limit` is below 1; None for no limit. A fraction
            allows at least one batch.
        batches: the number of batches without the limit; None if it is unknown.

    Raises:
        ArgumentError: if `limit` is a fraction and `batches` is None.
    """
    if limit is None:
        return None
    if limit < 1 and batches is None:
        raise ArgumentError(
            f"A limit of {limit} is a fraction of the batches, but the data has no length. Set a number of batches."
        )
    most = max(1, int((batches or 0) * limit)) if limit < 1 else int(limit)
    return None if batches is not None and most >= batches else most


Plan = RunPlan
"""The former name of `RunPlan`."""


def plan_run(
    *,
    batches: int | None,
    examples: int | None,
    max_steps: int,
    num_train_epochs: float,
    batch_size: int,
    accumulate: int,
    world_size: int = 1,
    accumulation_in: Callable[[int], int] | None = None,
    epoch_rows: int | None = None,
) -> RunPlan:
    """Compute the length of a run.

    Args:
        batches: batches of one rank in an epoch; None if the loader has no length.
        examples: samples of the dataset; None if the dataset has no length.
        max_steps: optimizer steps of the run; -1 uses `num_train_epochs`.
        num_train_epochs: epochs of the run, if `max_steps` is -1. A fraction ends the run in the middle of an epoch.
        batch_size: samples per batch of one rank.
        accumulate: batches per optimizer step of one rank.
        world_size: number of ranks.
        accumulation_in: receives an epoch, from 0, and returns its batches per step. None: each epoch has `accumulate`
            batches per step.
        epoch_rows: samples that all ranks together read in an epoch; if epochs differ, the largest number. Default:
            `examples`. If `examples` is None too: batches * batch_size * world_size.

    Raises:
        DataError: if `batches` is 0.
        ArgumentError: if `batches` is None and `max_steps` is not positive.
    """
    total_batch_size = batch_size * accumulate * world_size
    if batches is None:
        if max_steps <= 0:
            raise ArgumentError("The train dataset has no length, so the number of steps is unknown. Set `max_steps`.")
        rows = max_steps * total_batch_size
        return RunPlan(
            max_steps=max_steps,
            epochs=sys.maxsize,
            steps_per_epoch=max_steps,
            batches_per_epoch=max_steps * accumulate,
            total_batch_size=total_batch_size,
            num_examples=rows,
            num_train_samples=rows,
            epoch_rows=rows,
        )
    if batches == 0:
        remedy = ", and `dataloader_drop_last` drops incomplete batches. Use smaller batches"
        remedy = remedy if examples else ". Add samples"
        raise DataError(
            f"The train dataset gives no batch: it has {examples or 0} samples, and a batch has {batch_size}{remedy}."
        )
    steps_per_epoch = max(math.ceil(batches / accumulate), 1)
    samples: float
    # `num_examples` of transformers does not count the other ranks either if the dataset has no length.
    rows_per_epoch = examples if examples is not None else batches * batch_size
    if epoch_rows is None:
        epoch_rows = examples if examples is not None else batches * batch_size * world_size
    if accumulation_in is not None:
        ends = _scheduled_ends(batches, max_steps, num_train_epochs, accumulation_in)
        samples = rows_per_epoch * num_train_epochs if max_steps <= 0 else len(ends) * rows_per_epoch
        steps = max_steps if max_steps > 0 else ends[-1] if ends else 0
        return RunPlan(
            steps, len(ends), steps_per_epoch, batches, total_batch_size, rows_per_epoch, samples, epoch_rows
        )
    if max_steps > 0:
        epochs = math.ceil(max_steps / steps_per_epoch)
        samples = max_steps * total_batch_size
    else:
        max_steps = math.ceil(num_train_epochs * steps_per_epoch)
        epochs = math.ceil(num_train_epochs)
        samples = rows_per_epoch * num_train_epochs
    return RunPlan(max_steps, epochs, steps_per_epoch, batches, total_batch_size, rows_per_epoch, samples, epoch_rows)


def _scheduled_ends(
    batches: int, max_steps: int, num_train_epochs: float, accumulation_in: Callable[[int], int]
) -> list[int]:
    """Return, for each epoch of a run, the number of steps from the start of the run to the end of the epoch.

    The parameters are the same as in `plan_run`. If `max_steps` is positive, the last number may exceed `max_steps`.
    """
    ends: list[int] = []
    while (ends[-1] if ends else 0) < max_steps or (max_steps <= 0 and len(ends) < num_train_epochs):
        steps = math.ceil(batches / accumulation_in(len(ends)))
        share = 1.0 if max_steps > 0 else min(1.0, num_train_epochs - len(ends))
        ends.append((ends[-1] if ends else 0) + math.ceil(steps * share))
    return ends
