"""Where in the data a run is: in rows of all processes too, so that it holds for batches and steps of any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .plan import Plan


@dataclass
class Position:
    """Where in the data the run is."""

    epoch: int = 0
    """The epoch being run, from 0."""
    batches: int = 0
    """How many batches of it one process has taken; rows of other batches count as batches of this size, rounded up."""
    first_row: int = 0
    """Rows of it, of all processes, that were taken in batches or steps of another size, before those of this one."""
    length: int = 0
    """How many batches it has, counted likewise, where that is another number than in other epochs; else 0."""

    def rows(self, rows_per_batch: int) -> int:
        """Return how many rows of the epoch are taken; what fills up its last batch counts too.

        Args:
            rows_per_batch: rows of a batch, over all processes.
        """
        before = math.ceil(self.first_row / rows_per_batch)
        return self.first_row + (self.batches - before) * rows_per_batch

    def next_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.epoch, self.batches, self.first_row, self.length = self.epoch + 1, 0, 0, 0


@dataclass(frozen=True)
class Sizes:
    """What decides where in the data steps begin and end."""

    rows_per_batch: int
    """Rows of a batch, over all processes."""
    batches_per_step: int
    """Batches of one process in an optimizer step."""


def noted(position: Position, plan: Plan, sizes: Sizes, leaves_epoch: bool) -> dict[str, int]:
    """Return what a checkpoint says of a position, for sessions with other sizes too.

    Args:
        position: where the run is.
        plan: its plan.
        sizes: its sizes.
        leaves_epoch: whether the run is about to leave the epoch, and goes on at its end.
    """
    batches = (position.length or plan.batches_per_epoch) if leaves_epoch else position.batches
    rows = Position(0, batches, position.first_row).rows(sizes.rows_per_batch)
    return {
        "epoch": position.epoch,
        "batches": batches,
        "rows": rows if plan.endless else min(rows, plan.num_examples),
        "first_row": position.first_row,
        "length": position.length,
        "rows_per_batch": sizes.rows_per_batch,
        "batches_per_step": sizes.batches_per_step,
        "offset": plan.offset,
    }


def taken_up(
    saved: dict[str, Any], plan: Plan, sizes: Sizes, step: int, batches_after: Callable[[int], int | None]
) -> tuple[Position, int]:
    """Return the position that a checkpoint says, and the plan's offset, for the sizes of this session.

    Args:
        saved: what `noted` returned. Earlier checkpoints say the epoch, its batches and their rows only.
        plan: of a whole run of these sizes.
        sizes: of this session.
        step: optimizer steps done.
        batches_after: from rows of an epoch, of all processes, to the batches of one process that come after them;
            None where nobody knows.
    """
    position = Position(saved["epoch"], saved["batches"], saved.get("first_row", 0), saved.get("length", 0))
    rows_per_batch = saved.get("rows_per_batch", sizes.rows_per_batch)
    if sizes == Sizes(rows_per_batch, saved.get("batches_per_step", sizes.batches_per_step)):
        return position, saved.get("offset", 0)
    rows = saved.get("rows", position.rows(rows_per_batch))
    if plan.endless:
        left: int | None = max(0, plan.max_steps - step) * sizes.batches_per_step
    else:
        rows = min(rows, plan.num_examples)
        left = batches_after(rows)
    batches = math.ceil(rows / sizes.rows_per_batch)
    if left is None:
        left = max(0, plan.batches_per_epoch - batches)
    end = step + math.ceil(left / sizes.batches_per_step)
    offset = 0 if plan.endless else end - (position.epoch + 1) * plan.steps_per_epoch
    return Position(position.epoch, batches, rows, batches + left), offset
