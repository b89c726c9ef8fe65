"""Streaming shards: divide a stream of samples over the ranks.

With `StreamShard`, each rank reads the whole stream and keeps its own samples. With `StreamEndSync`, each rank reads
only its own part, and all ranks end an epoch together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ...events.errors import DataError
from ..distributed.ranks import Ranks
from .batches import pinned, rows_of
from .collators.default import Collator
from .stream_state import dataset_state, restore_dataset, unresumed

logger = logging.getLogger(__name__)


class StreamShard(IterableDataset[Any]):
    """The samples of one rank from a stream that every rank reads whole.

    Each group of `batch_size * world_size` consecutive samples is divided into one batch per rank, in order of rank.
    Every rank gets the same number of batches. If `drop_last` is True, the remaining samples at the end of the stream
    are dropped. If it is False, the remaining samples are divided evenly over the ranks. If the number of remaining
    samples is not a multiple of the world size, the last ranks get copies of the first samples of the stream. Each copy
    is wrapped in a `PaddingRow`.

    The stream must yield the same samples in the same order on every rank. A stream that shuffles must therefore
    compute its seed from the epoch that `set_epoch` receives. accelerate works differently: its rank 0 reads the
    stream, and sends the samples to the other ranks.
    """

    def __init__(self, rows: Any, batch_size: int, ranks: Ranks, drop_last: bool = False) -> None:
        """Create this rank's shard of the samples of `rows`.

        Args:
            rows: iterates over all samples, on every rank.
            batch_size: samples per batch of one rank.
            ranks: the ranks.
            drop_last: drop the remaining samples that do not fill a batch on every rank.
        """
        self.rows = rows
        self.batch_size = batch_size
        self.ranks = ranks
        self.drop_last = drop_last
        self.first_rows: dict[int, int] = {}
        """Samples, over all ranks, to skip at the start of the next iteration, by worker number. Without workers, the
        only key is 0."""
        self._first: list[Any] = []
        self._resumed = False
        self._told_longer = False

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the stream, if the stream has `set_epoch`. Epochs count from 0."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def from_start(self) -> StreamShard:
        """Return a new shard of the same samples that starts at the first sample, and leave `self` unchanged."""
        return StreamShard(unresumed(self.rows), self.batch_size, self.ranks, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        worker, first_rows, self.first_rows = get_worker_info(), self.first_rows, {}
        return self._from(first_rows.get(0 if worker is None else worker.id, 0))

    def _from(self, first_row: int) -> Iterator[Any]:
        """Skip the first `first_row` samples of the stream. Yield this rank's samples from the rest."""
        world, rank, size = self.ranks.world_size, self.ranks.rank, self.batch_size
        if not self._resumed:
            self._first = []
        self._resumed = False
        group: list[Any] = []
        planned = None if self._told_longer or get_worker_info() is not None else _length_of(self.rows)
        for number, row in enumerate(self.rows):
            if len(self._first) < world:
                self._first.append(row)
            if number == planned:
                self._tell_longer(planned)
            if number < first_row:
                continue
            group.append(row)
            if len(group) == size * world:
                yield from group[rank * size : (rank + 1) * size]
                group = []
        if group and not self.drop_last:
            per_rank = math.ceil(len(group) / world)
            for index in range(rank * per_rank, (rank + 1) * per_rank):
                over = index - len(group)
                yield group[index] if over < 0 else PaddingRow(self._first[over % len(self._first)])

    def check_length(self, batches: int, workers: int) -> None:
        """Warn once if an epoch has more batches than the `__len__` of the stream allows.

        Args:
            batches: the number of batches of this epoch that the workers of this rank have made so far.
            workers: the number of workers. The last batch of each worker can be smaller than the other batches. So the
                method allows `workers - 1` additional batches.
        """
        planned = None if self._told_longer else _length_of(self.rows)
        if planned is not None and batches >= math.ceil(planned / self.stride) + workers:
            self._tell_longer(planned)

    def _tell_longer(self, planned: int) -> None:
        self._told_longer = True
        logger.warning(
            "%s yields more than the %d samples of its `__len__`. Epochs are planned with that length: return the "
            "number of samples from `__len__`, or remove it and set `max_steps`.",
            *(type(self.rows).__name__, planned),
        )

    def __len__(self) -> int:
        return len(self.rows)  # samples over all ranks, as a map-style dataset counts them

    @property
    def stride(self) -> int:
        """The samples per batch of one rank, times the number of ranks."""
        return self.batch_size * self.ranks.world_size

    def batches(self, first_row: int = 0) -> int:
        """Return how many batches of one rank are left when all ranks together have used `first_row` samples.

        Raises:
            TypeError: if the stream has no length.
        """
        left = max(0, len(self.rows) - first_row)
        return left // self.stride if self.drop_last else math.ceil(left / self.stride)

    def state_dict(self) -> Any:
        """Return the position of the stream; None if the stream cannot save its position.

        With several ranks, the state also has the first samples of the stream, because the last ranks may get copies of
        these samples at the end of the stream.
        """
        state = dataset_state(self.rows)
        return state if state is None or self.ranks.single_process else {"rows": state, "first": [*self._first]}

    def load_state_dict(self, state: Any) -> None:
        """Restore a state that `state_dict` returned."""
        if not self.ranks.single_process:
            self._first, state, self._resumed = [*state["first"]], state["rows"], True
        restore_dataset(self.rows, state)


@dataclass
class PaddingRow:
    """A copy of a sample of another rank. It fills up the last batch of this rank.

    With the copies, the last batches of all ranks have the same size. Results of an evaluation do not include copies.
    """

    row: Any
    """The sample."""


@dataclass
class PaddedBatch:
    """A batch whose last rows may be padding."""

    batch: Any
    """The batch."""
    padding_rows: int
    """Number of padding rows at the end of the batch."""
    rows: int | None = None
    """Number of samples of the batch, padding included; None if the caller must read it from the tensors."""

    def pin_memory(self) -> PaddedBatch:
        """Return a copy with the batch in pinned memory. torch calls this method."""
        return PaddedBatch(pinned(self.batch), self.padding_rows, self.rows)


@dataclass
class PaddingRowCollator:
    """A collator that also accepts samples in a `PaddingRow`.

    If a sample is a `PaddingRow`, the collator returns a `PaddedBatch`, otherwise a plain batch. With `counts=True`,
    the collator always returns a `PaddedBatch`.
    """

    collator: Collator
    """Makes the batch."""
    counts: bool = False
    """Whether every result is a `PaddedBatch` with its number of samples, because the tensors of a time-major or packed
    batch do not show this number."""

    def __call__(self, features: list[Any]) -> Any:
        padding_rows = sum(isinstance(row, PaddingRow) for row in features)
        if not padding_rows and not self.counts:
            return self.collator(features)
        rows = [row.row if isinstance(row, PaddingRow) else row for row in features]
        return PaddedBatch(self.collator(rows), padding_rows, len(rows) if self.counts else None)


@dataclass
class StreamCollator:
    """A collator for streams. It raises a `DataError` if the user's collator raises StopIteration.

    Otherwise Python would treat this StopIteration as the end of the epoch.
    """

    collator: Collator
    """Makes the batch."""

    def __call__(self, features: list[Any]) -> Any:
        try:
            return self.collator(features)
        except StopIteration as error:
            raise DataError(
                "The collator raised StopIteration, which would end the epoch of a stream there. Raise another error, "
                "or pass a default to `next`."
            ) from error


@dataclass(frozen=True)
class StreamEndSync:
    """Lets all ranks end an epoch together, although each rank reads its own part of a stream.

    If a rank has no batch left, it gets padding: a copy of the batch of the first rank that has a batch left.
    """

    ranks: Ranks
    """The ranks."""

    def align(self, batch: Any, end: Any) -> Any:
        """Return this rank's next batch.

        If only other ranks have a batch left, return padding. If no rank has a batch left, return `end`. Every rank
        must call this method for every batch.

        Args:
            batch: the next batch of this rank, or `end` if this rank has no batch left.
            end: the object that stands for the end of the epoch.
        """
        has_batch = [flag for (flag,) in self.ranks.gather_numbers(int(batch is not end))]
        if all(has_batch) or not any(has_batch):
            return batch
        giver = has_batch.index(1)
        given = self.ranks.gather_objects(batch if self.ranks.rank == giver else None)[giver]
        if batch is not end:
            return batch
        rows, given = (given.rows, given.batch) if isinstance(given, PaddedBatch) else (None, given)
        return PaddedBatch(given, rows or rows_of(given) or 1, rows)


def own_part(dataset: Any, ranks: Ranks, wanted: bool) -> Any:
    """Return the part of a `datasets` stream that only this rank reads; None if each rank reads the whole stream.

    Args:
        dataset: a stream. If the program split the stream with `split_dataset_by_node`, the function returns `dataset`
            unchanged, also with `wanted=False`.
        ranks: the ranks.
        wanted: whether to divide the shards of the stream, such as its files, over the ranks. If False, or if there are
            fewer shards than ranks, the function returns None.
    """
    if getattr(dataset, "_distributed", None) is not None:
        return dataset
    if wanted and getattr(dataset, "num_shards", 0) >= ranks.world_size and hasattr(dataset, "shard"):
        return dataset.shard(num_shards=ranks.world_size, index=ranks.rank)
    return None


def _length_of(rows: Any) -> int | None:
    try:
        return len(rows)
    except (TypeError, AttributeError, NotImplementedError):
        return None
