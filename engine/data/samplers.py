"""Samplers: the order of the rows, as a function of seed and epoch, so that any position can be returned to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler


class ShuffledSampler(Sampler[int]):
    """All rows in random order, another one each epoch: the permutation that torch draws from `seed + epoch`.

    That is what transformers' Trainer does, through accelerate's seedable sampler.
    """

    def __init__(self, dataset: Sized, seed: int) -> None:
        """Shuffle the rows of `dataset`, beginning at epoch 0."""
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, counted from 0."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        yield from torch.randperm(len(self.dataset), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.dataset)


class BatchedSampler(Sampler[list[int]]):
    """The batches of one process: every `world_size`-th batch of the sampler's, beginning at its rank.

    With `even`, all processes get the same number of full batches: the end is filled up from the beginning, as
    accelerate fills it, and `drop_last` drops what cannot be filled. Without, each row is given out exactly once.
    """

    def __init__(
        self,
        sampler: Sampler[int],
        batch_size: int,
        *,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        even: bool = True,
    ) -> None:
        """Batch the rows of `sampler`; `batch_size` is of one process."""
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.even = even
        self.first = 0
        """Batches of this process to leave out at the beginning of the next iteration."""
        self.blank = 0
        """Batches without rows to give out before those."""
        self.first_row = 0
        """Rows, of all processes, to leave out at the beginning of the next iteration."""

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, where the sampler knows of epochs."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def skip(self, batches: int, blank: int = 0) -> None:
        """Leave out so many batches of this process at the beginning of the next iteration, which goes on with one.

        Args:
            batches: how many.
            blank: how many without rows come in their place.
        """
        self.first, self.blank = batches, blank
        if hasattr(self.sampler, "repeat"):
            self.sampler.repeat()

    def __iter__(self) -> Iterator[list[int]]:
        first_row, self.first_row = self.first_row, 0
        rows = list(self.sampler)[first_row:]
        size = self.batch_size
        stride = size * self.world_size
        first, self.first = self.first, 0
        blank, self.blank = self.blank, 0
        yield from ([] for _ in range(blank))
        for start in range(first * stride + self.rank * size, self._end(len(rows)), stride):
            batch = rows[start : start + size]
            if self.world_size > 1 and self.even:
                batch = [rows[(start + offset) % len(rows)] for offset in range(size)]
            if batch:
                yield batch

    def _end(self, rows: int) -> int:
        """Return the row number at which no further batch of any process begins."""
        stride = self.batch_size * self.world_size
        if self.drop_last:
            return rows // stride * stride
        return math.ceil(rows / stride) * stride if self.even else rows

    def __len__(self) -> int:
        rows = len(self.sampler)  # type: ignore[arg-type]
        return len(range(self.rank * self.batch_size, self._end(rows), self.batch_size * self.world_size))
