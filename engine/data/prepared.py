"""`PreparedLoader`, the wrapper that `accelerator.prepare` returns for a DataLoader of the program."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from ..distributed.ranks import Ranks
from .open_loaders import opened
from .samplers import ShuffledSampler


class ShardedBatches:
    """One rank's part of the batches of a batch sampler. The batches are divided over the ranks as in accelerate.

    All ranks get the same number of batches. Samples from the start of the epoch fill up the last batches. If the batch
    sampler has `drop_last=True`, the batches that are left over are dropped instead. For example, 4 ranks drop the
    last 2 of 10 batches.
    """

    def __init__(self, batches: Any, ranks: Ranks) -> None:
        """Divide `batches`, which yields lists of sample indices, among `ranks`."""
        self.batches, self.ranks = batches, ranks
        self.padding_rows = 0
        """The number of samples at the end of the last yielded batch that only fill up the batch."""

    @property
    def batch_size(self) -> int | None:
        """Samples per batch; None if the batch sampler has no attribute `batch_size`."""
        return getattr(self.batches, "batch_size", None)

    @property
    def drop_last(self) -> bool:
        """Whether incomplete batches are dropped."""
        return bool(getattr(self.batches, "drop_last", False))

    def __len__(self) -> int:
        count, world_size = len(self.batches), self.ranks.world_size
        return count // world_size if self.drop_last else math.ceil(count / world_size)

    def __iter__(self) -> Iterator[Any]:
        rank, world_size, size = self.ranks.rank, self.ranks.world_size, self.batch_size
        first: list[Any] = []
        group: list[Any] = []
        self.padding_rows = 0
        for batch in self.batches:
            if len(first) < world_size:
                first.append(list(batch))
            group.append(batch)
            if len(group) == world_size and (size is None or len(batch) == size):
                yield group[rank]
                group = []
        if not group or self.drop_last:
            return
        if size is None:
            yield (group + first * world_size)[rank]
            return
        left, again = [*chain.from_iterable(group)], [*chain.from_iterable(first)]
        self.padding_rows = size - max(0, min(size, len(left) - rank * size))
        yield [*islice(chain(left, cycle(again)), rank * size, (rank + 1) * size)]


class CountedBatches:
    """A wrapper of a batch sampler that records the sizes of its batches.

    Attributes that the wrapper does not define come from the wrapped batch sampler.
    """

    def __init__(self, batches: Any) -> None:
        """Wrap the batch sampler `batches`."""
        self.batches = batches
        self.sizes: deque[tuple[int | None, int]] = deque()
        """The numbers of samples and padding rows of each batch that the DataLoader has requested and not yet returned.
        The number of samples is None if the batch has no length."""

    def __iter__(self) -> Iterator[Any]:
        self.sizes = deque()
        return self._counted(self.sizes)

    def _counted(self, sizes: deque[tuple[int | None, int]]) -> Iterator[Any]:
        for batch in self.batches:
            rows = len(batch) if hasattr(batch, "__len__") else None
            sizes.append((rows, getattr(self.batches, "padding_rows", 0)))
            yield batch

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name: str) -> Any:
        if name == "batches":  # a copy has no attributes yet
            raise AttributeError(name)
        return getattr(self.batches, name)


class PreparedLoader:
    """A wrapper of a DataLoader that passes the epoch to the samplers, and gives each rank its part of the batches.

    Like accelerate's loader, the wrapper fetches a batch before the step on the previous batch. Attributes that the
    wrapper does not define come from the DataLoader.
    """

    padding_rows = 0
    """Padding rows at the end of the last yielded batch. Evaluations do not count them."""
    batch_rows: int | None = None
    """Samples of the last yielded batch, padding included. None if the loader has no batch sampler that counts them."""
    iteration = 0
    """The epoch, from 0. An iteration passes the epoch to the samplers when it begins, and adds 1 when it ends."""

    def __init__(self, loader: DataLoader[Any], ranks: Ranks, seed: int) -> None:
        """Wrap `loader`. The ranks take its batches in turn.

        Args:
            loader: the loader, equal on every rank. If its sampler is a `RandomSampler` that draws each sample once, a
                `ShuffledSampler` replaces this sampler.
            ranks: the ranks. If the batches cannot be divided evenly, `ShardedBatches` and `_shared` say what the
                ranks get.
            seed: the seed of the `ShuffledSampler`.
        """
        self.loader, self.ranks = loader, ranks
        self._batches = loader.batch_sampler
        batches: Any = self._batches
        sampler = getattr(batches, "sampler", None)
        if isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(sampler.data_source):
            batches.sampler = ShuffledSampler(sampler.data_source, seed)
        self.batch_sampler: Any = batches
        """The batch sampler, which yields the batches of this rank."""
        self._counted: CountedBatches | None = None
        if batches is None or isinstance(loader.dataset, IterableDataset):
            return
        if not ranks.single_process:
            self.batch_sampler = ShardedBatches(batches, ranks)
        elif type(loader) is not DataLoader:  # another class may keep a state of its batch sampler
            return
        self._counted = CountedBatches(self.batch_sampler)
        self.loader = copy.copy(loader)
        # A DataLoader refuses the assignment. The copy has no iterator yet.
        object.__setattr__(self.loader, "batch_sampler", self._counted)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch, from 0, to the batch sampler, its sampler and the dataset, if they have `set_epoch`."""
        self.iteration = epoch
        batches: Any = self._batches
        parts: list[Any] = [batches, getattr(batches, "sampler", None), self.loader.dataset]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.loader) if self._is_sharded else math.ceil(len(self.loader) / self.ranks.world_size)

    @property
    def _is_sharded(self) -> bool:
        """Whether the wrapped DataLoader, the attribute `loader`, yields only the batches of this rank."""
        return self.ranks.single_process or isinstance(self.batch_sampler, ShardedBatches)

    def __iter__(self) -> Iterator[Any]:
        self.set_epoch(self.iteration)
        batches = iter(self.loader) if self._is_sharded else self._shared()
        # Another iteration that starts before this one ends has its own sizes.
        sizes: deque[tuple[int | None, int]] = deque() if self._counted is None else self._counted.sizes
        with opened(self):
            for batch in islice(batches, 1):
                of_batch = sizes.popleft() if sizes else (None, 0)
                for following in batches:
                    self.batch_rows, self.padding_rows = of_batch
                    of_batch = sizes.popleft() if sizes else (None, 0)
                    yield batch
                    batch = following
                self.batch_rows, self.padding_rows = of_batch
                yield batch
        self.iteration += 1

    def _shared(self) -> Iterator[Any]:
        """Yield this rank's part of the batches: the batches `rank`, `rank + world_size` and so on, counted from 0.

        If other ranks get one batch more, also yield one of the first batches. All ranks then get the same number of
        batches.
        """
        rank, world_size = self.ranks.rank, self.ranks.world_size
        first: list[Any] = []
        count = 0
        for count, batch in enumerate(self.loader, 1):
            if count <= world_size:
                first.append(batch)
            if (count - 1) % world_size == rank:
                yield batch
        missing = -count % world_size
        if first and rank >= world_size - missing:
            yield first[(rank - (world_size - missing)) % len(first)]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # a copy has no attributes yet
            raise AttributeError(name)
        return getattr(self.loader, name)
