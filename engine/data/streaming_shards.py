"""A stream of rows, shared out among processes that each read all of it, or each read their own part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..distributed.ranks import Ranks
from .batches import map_tensors, rows_of
from .collators.default import Collator
from .stream_state import dataset_state, restore_dataset


class SharedStream(IterableDataset[Any]):
    """The rows of one process: of each `batch_size` rows for all processes, those that come at its place.

    All processes get the same number of batches, and each row goes to one of them. Of what is left at the end each
    gets the same number of rows, for which the first rows of the stream fill it up: those come as `Extra`. The rows are
    those that accelerate deals out from the first process, but here each process reads the stream, so that it has to
    give all of them the same rows in the same order: one that shuffles does so by its epoch, in `set_epoch`.
    """

    def __init__(self, rows: Any, batch_size: int, ranks: Ranks, drop_last: bool = False) -> None:
        """Share out `rows`, which iterates over them; `batch_size` is of one process.

        Args:
            rows: all rows, for every process.
            batch_size: rows of one process that follow each other.
            ranks: the processes.
            drop_last: leave out what does not fill a batch on every process.
        """
        self.rows = rows
        self.batch_size = batch_size
        self.ranks = ranks
        self.drop_last = drop_last
        self.first_rows: dict[int, int] = {}
        """Rows, of all processes, to leave out at the beginning of the next iteration: of what each worker reads, by
        its number; without workers, it is as of one of number 0."""
        self._first: list[Any] = []
        self._goes_on = False

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, counted from 0, where the stream knows of epochs."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        worker, first_rows, self.first_rows = get_worker_info(), self.first_rows, {}
        return self._from(first_rows.get(0 if worker is None else worker.id, 0))

    def _from(self, first_row: int) -> Iterator[Any]:
        world, rank, size = self.ranks.world_size, self.ranks.rank, self.batch_size
        if not self._goes_on:
            self._first = []
        self._goes_on = False
        group: list[Any] = []
        for number, row in enumerate(self.rows):
            if len(self._first) < world:
                self._first.append(row)
            if number < first_row:
                continue
            group.append(row)
            if len(group) == size * world:
                yield from group[rank * size : (rank + 1) * size]
                group = []
        if group and not self.drop_last:
            share = math.ceil(len(group) / world)
            for place in range(rank * share, (rank + 1) * share):
                over = place - len(group)
                yield group[place] if over < 0 else Extra(self._first[over % len(self._first)])

    def __len__(self) -> int:
        return len(self.rows)  # of all processes, as a dataset that is indexed says it

    @property
    def stride(self) -> int:
        """Rows of a batch, over all processes."""
        return self.batch_size * self.ranks.world_size

    def batches(self, first_row: int = 0) -> int:
        """Return the batches of one process that come after so many rows, of all processes.

        Raises:
            TypeError: if the stream does not know how many rows it has.
        """
        left = max(0, len(self.rows) - first_row)
        return left // self.stride if self.drop_last else math.ceil(left / self.stride)

    def state_dict(self) -> Any:
        """Return where the stream is, and the first rows of it; None where it cannot say so."""
        state = dataset_state(self.rows)
        return state if state is None or self.ranks.single_process else {"rows": state, "first": [*self._first]}

    def load_state_dict(self, state: Any) -> None:
        """Go on from such a state."""
        if not self.ranks.single_process:
            self._first, state, self._goes_on = [*state["first"]], state["rows"], True
        restore_dataset(self.rows, state)


@dataclass
class Extra:
    """A row that fills up the last batch of a process, for which there is no row of its own."""

    row: Any
    """The row, which another process has or had."""


@dataclass
class Filled:
    """A batch that is filled up."""

    batch: Any
    """The batch."""
    extra: int
    """How many of its rows, the last ones, fill it up."""

    def pin_memory(self) -> Filled:
        """Pin the batch, as torch asks of kinds that it does not know."""
        return Filled(map_tensors(torch.Tensor.pin_memory, self.batch), self.extra)


@dataclass
class CountingExtras:
    """A collator that says of a batch how many of its rows fill it up."""

    collator: Collator
    """Makes the batch."""

    def __call__(self, features: list[Any]) -> Any:
        extra = sum(isinstance(row, Extra) for row in features)
        if not extra:
            return self.collator(features)
        return Filled(self.collator([row.row if isinstance(row, Extra) else row for row in features]), extra)


@dataclass(frozen=True)
class EvenEnds:
    """Has processes that each read a stream of their own come to its end together.

    Where one has no batch left and others have, it takes that of the first of those, as one that only fills up.
    """

    ranks: Ranks
    """The processes."""

    def agreed(self, batch: Any, end: Any) -> Any:
        """Return the batch of this process, one to fill up with, or `end` if no process has any left.

        Called on every process for every batch.

        Args:
            batch: the next one of this process, or `end`.
            end: what stands for the end.
        """
        has = [own for (own,) in self.ranks.gather_numbers(int(batch is not end))]
        if all(has) or not any(has):
            return batch
        giver = has.index(1)
        given = self.ranks.gather_objects(batch if self.ranks.rank == giver else None)[giver]
        if batch is not end:
            return batch
        given = given.batch if isinstance(given, Filled) else given
        return Filled(given, rows_of(given) or 1)


def own_part(dataset: Any, ranks: Ranks, wanted: bool) -> Any:
    """Return the part of a `datasets` stream that this process reads alone; None where it reads all of it.

    Args:
        dataset: a stream. One that the program has split by node itself is such a part already.
        ranks: the processes.
        wanted: whether the shards of others are to be dealt out, if there are enough of them.
    """
    if getattr(dataset, "_distributed", None) is not None:
        return dataset
    if wanted and getattr(dataset, "num_shards", 0) >= ranks.world_size and hasattr(dataset, "shard"):
        return dataset.shard(num_shards=ranks.world_size, index=ranks.rank)
    return None
