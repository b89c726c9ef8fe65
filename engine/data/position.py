"""The position of a run in the data. Checkpoints store it in samples, so that it does not depend on the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .plan import RunPlan


@dataclass
class Position:
    """The position of the run in the data."""

    epoch: int = 0
    """The current epoch, from 0."""
    batches: int = 0
    """The number of batches of the epoch that one rank has trained on. After a change of the batch size, the earlier
    samples count as batches of the new size, rounded up."""
    first_row: int = 0
    """The number of samples of the epoch, over all ranks, that were done when the batch size, the world size or the
    gradient accumulation changed. 0 if none of them changed in this epoch."""
    length: int = 0
    """The value of `batches` at the end of this epoch, if the run resumed in this epoch with other `Sizes`; else 0."""
    cut: bool = False
    """Whether a stop ends the session inside this epoch. The resumed run then continues in this epoch."""
    held: bool = False
    """Whether a stop interrupted an evaluation in this epoch. The resumed run repeats the evaluation, and then does the
    work at the end of the epoch."""
    ended: bool = False
    """Whether this session has done the work at the end of the epoch, although the run stays in this epoch (`cut`)."""
    fetched: int = 0
    """The number of batches that the loader has given to the step in progress; 0 between two steps."""

    @property
    def closed(self) -> bool:
        """Whether the epoch is closed: the work at its end is done, or the epoch has no finished batch."""
        return self.batches == 0 or self.ended

    def open(self) -> tuple[int, int]:
        """Set the attributes `cut`, `held` and `ended` to False. Return `epoch` and `batches`, for `Feed.begin`."""
        self.cut = self.held = self.ended = False
        return self.epoch, self.batches

    def advance(self, batches: int) -> None:
        """Add the number of batches of a complete step to the attribute `batches`, and set `fetched` to 0."""
        self.batches, self.fetched = self.batches + batches, 0

    def leave(self) -> None:
        """Move to the start of the next epoch.

        After a stop inside an epoch (`cut`), stay in this epoch. `ended` is then the opposite of `held`.
        """
        if self.cut:
            self.ended = not self.held
        else:
            self.next_epoch()

    def rows(self, rows_per_batch: int) -> int:
        """Return how many samples of the epoch all ranks together used, including copies that fill the last batch.

        Args:
            rows_per_batch: the samples per batch of one rank, times the world size.
        """
        before = math.ceil(self.first_row / rows_per_batch)
        return self.first_row + (self.batches - before) * rows_per_batch

    def next_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.epoch, self.batches, self.first_row, self.length = self.epoch + 1, 0, 0, 0


@dataclass(frozen=True)
class Sizes:
    """The sizes that decide at which samples a step begins and ends: batch size, accumulation and world size."""

    rows_per_batch: int
    """The samples per batch of one rank, times the world size."""
    batches_per_step: int
    """Batches of one rank in an optimizer step."""


def batch_size_of(loader: Any, default: int) -> int:
    """Return the attribute `batch_size` of a loader; `default` if the attribute is missing or is not an integer."""
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else default


def follows_arguments(loader: Any) -> bool:
    """Return whether the batch size of a loader is known.

    It is known for a `Loader` of trainbus, and for a loader with an integer in the attribute `batch_size`. It is
    unknown for a DataLoader that the user built with a batch sampler.
    """
    return hasattr(loader, "batches_after") or isinstance(getattr(loader, "batch_size", None), int)


def save_position(position: Position, plan: RunPlan, sizes: Sizes, leaves_epoch: bool) -> dict[str, int]:
    """Convert the position to a dict of numbers for a checkpoint.

    A session with another batch size, gradient accumulation or world size can resume from this dict.

    Args:
        position: the position of the run.
        plan: the length of the run.
        sizes: the batch size and the gradient accumulation of this session.
        leaves_epoch: whether the run is about to leave the epoch. The saved position is then the end of the epoch.
    """
    batches = (position.length or plan.batches_per_epoch) if leaves_epoch else position.batches
    rows = Position(0, batches, position.first_row).rows(sizes.rows_per_batch)
    return {
        "epoch": position.epoch,
        "batches": batches,
        "rows": rows if plan.endless else min(rows, plan.epoch_rows),
        "first_row": position.first_row,
        "length": position.length,
        "ended": position.ended,
        "rows_per_batch": sizes.rows_per_batch,
        "batches_per_step": sizes.batches_per_step,
        "offset": plan.offset,
    }


def restore_position(
    saved: dict[str, Any], plan: RunPlan, sizes: Sizes, step: int, batches_after: Callable[[int], int | None]
) -> tuple[Position, int]:
    """Return the position in a checkpoint, and `RunPlan.offset`, both converted to the batch sizes of this session.

    Args:
        saved: the result of `save_position`. Checkpoints of earlier versions lack some of its entries.
        plan: the length of a whole run with `sizes`.
        sizes: the batch size and the gradient accumulation of this session.
        step: optimizer steps that are done.
        batches_after: a function. It receives the number of samples of the epoch that all ranks together have used. It
            returns the number of batches of the epoch that are left for one rank; None if the number is unknown.
    """
    position = Position(saved["epoch"], saved["batches"], saved.get("first_row", 0), saved.get("length", 0))
    rows_per_batch = saved.get("rows_per_batch", sizes.rows_per_batch)
    if sizes == Sizes(rows_per_batch, saved.get("batches_per_step", sizes.batches_per_step)):
        return position, saved.get("offset", 0)
    rows = saved.get("rows", position.rows(rows_per_batch))
    if plan.endless:
        left: int | None = max(0, plan.max_steps - step) * sizes.batches_per_step
    else:
        rows = min(rows, plan.epoch_rows)
        left = batches_after(rows)
    batches = math.ceil(rows / sizes.rows_per_batch)
    if left is None:
        left = max(0, plan.batches_per_epoch - batches)
    end = step + math.ceil(left / sizes.batches_per_step)
    offset = 0 if plan.endless else end - (position.epoch + 1) * plan.steps_per_epoch
    return Position(position.epoch, batches, rows, batches + left), offset
