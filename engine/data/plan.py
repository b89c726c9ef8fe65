"""The plan of a run: how many steps and epochs, from the arguments and the size of the data."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

from ...events.errors import ArgumentError, DataError


@dataclass(frozen=True)
class Plan:
    """How long a run is, in every unit."""

    max_steps: int
    """Optimizer steps of the whole run."""
    epochs: int
    """Epochs, the last one perhaps in part."""
    steps_per_epoch: int
    """Optimizer steps of a whole epoch."""
    batches_per_epoch: int
    """Batches of one process in a whole epoch."""
    total_batch_size: int
    """Rows of one optimizer step, over all processes."""
    num_examples: int
    """Rows of the dataset, or the number planned where it has no length."""
    num_train_samples: float
    """Rows to train on in the whole run, for the throughput in the summary."""
    offset: int = 0
    """Steps by which epochs end later than they would, had the run made all of its steps in this size."""

    @property
    def endless(self) -> bool:
        """Whether the data has no length, so that steps and not epochs say when the run is over."""
        return self.epochs == sys.maxsize

    def moved(self, offset: int, step: int, epoch: int, by_steps: bool) -> Plan:
        """Return the plan of a run of which a part was made in steps of another size.

        Args:
            offset: steps by which the present epoch, and so each later one, ends later than this plan says.
            step: optimizer steps done.
            epoch: the present epoch, from 0.
            by_steps: whether the number of steps was asked for, and stays; else that of epochs does.
        """
        if self.endless or not offset:
            return self
        if by_steps:
            needed = math.ceil((self.max_steps - offset) / self.steps_per_epoch)
            return replace(self, offset=offset, epochs=max(epoch + 1, needed))
        return replace(self, offset=offset, max_steps=max(step, self.max_steps + offset))

    def in_steps(self, interval: float) -> float:
        """Return an interval in steps; one below 1 is a share of the run, rounded up."""
        return math.ceil(self.max_steps * interval) if interval < 1 else int(interval)


def plan_run(
    *,
    batches: int | None,
    examples: int | None,
    max_steps: int,
    num_train_epochs: float,
    batch_size: int,
    accumulate: int,
    world_size: int = 1,
) -> Plan:
    """Plan a run.

    Args:
        batches: batches of one process in an epoch, or None for data without a length.
        examples: rows of the dataset, or None for data without a length.
        max_steps: optimizer steps wanted; -1 to go by epochs.
        num_train_epochs: epochs wanted, where `max_steps` is -1; a fraction ends in the middle of an epoch.
        batch_size: rows per batch of one process.
        accumulate: batches per optimizer step of one process.
        world_size: number of processes.

    Raises:
        DataError: if the dataset is empty.
        ArgumentError: if neither the data nor `max_steps` says how long the run is.
    """
    total_batch_size = batch_size * accumulate * world_size
    if batches is None:
        if max_steps <= 0:
            raise ArgumentError(
                "The train dataset has no length, so the number of steps cannot be known: set `max_steps`."
            )
        rows = max_steps * total_batch_size
        return Plan(max_steps, sys.maxsize, max_steps, max_steps * accumulate, total_batch_size, rows, rows)
    if batches == 0:
        raise DataError(
            f"The train dataset gives no batch: it has {examples or 0} rows and a batch has {batch_size}"
            + (", incomplete ones being dropped (`dataloader_drop_last`)." if examples else ".")
        )
    steps_per_epoch = max(math.ceil(batches / accumulate), 1)
    rows_per_epoch = examples if examples is not None else batches * batch_size
    if max_steps > 0:
        epochs = math.ceil(max_steps / steps_per_epoch)
        samples: float = max_steps * total_batch_size
    else:
        max_steps = math.ceil(num_train_epochs * steps_per_epoch)
        epochs = math.ceil(num_train_epochs)
        samples = rows_per_epoch * num_train_epochs
    return Plan(max_steps, epochs, steps_per_epoch, batches, total_batch_size, rows_per_epoch, samples)
