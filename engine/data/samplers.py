"""Samplers: the order of the rows, as a function of seed and epoch, so that any position can be returned to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ..checkpoint.rng_state import random_states, restore_random_states


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


class GivenSampler(Sampler[int]):
    """The order of a sampler of the user's, with what it takes to draw it again in the middle of an epoch."""

    def __init__(self, sampler: Any) -> None:
        """Give out the rows of `sampler`, anything that iterates over them."""
        self.sampler = sampler
        self.state: dict[str, Any] | None = None
        """The random states from which the last order was drawn; None before the first."""
        self._again = False

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, where the sampler knows of epochs."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def repeat(self) -> None:
        """Give out once more, the next time, the order that belongs to `state`."""
        self._again = self.state is not None

    def __iter__(self) -> Iterator[int]:
        generator: Any = getattr(self.sampler, "generator", None)
        own = isinstance(generator, torch.Generator)
        if self._again and self.state is not None:
            self._again = False
            before = random_states()
            restore_random_states(self.state["global"])
            if own:
                generator.set_state(self.state["own"])
            rows = list(self.sampler)
            restore_random_states(before)  # which are those behind the draw already
            return iter(rows)
        self.state = {"global": random_states(), **({"own": generator.get_state()} if own else {})}
        return iter(list(self.sampler))

    def __len__(self) -> int:
        return len(self.sampler)


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
        rows = list(self.sampler)
        size, stride = self.batch_size, self.stride
        first, self.first = self.first, 0
        blank, self.blank = self.blank, 0
        yield from ([] for _ in range(blank))
        for start in range(first_row + first * stride + self.rank * size, self._end(len(rows), first_row), stride):
            batch = rows[start : start + size]
            if self.world_size > 1 and self.even:
                batch = [rows[(start + offset) % len(rows)] for offset in range(size)]
            if batch:
                yield batch

    @property
    def stride(self) -> int:
        """Rows of a batch, over all processes."""
        return self.batch_size * self.world_size

    def _end(self, rows: int, first_row: int) -> int:
        """Return the row number at which no further batch of any process begins, if they begin at `first_row`."""
        stride, left = self.stride, max(0, rows - first_row)
        if self.drop_last:
            return first_row + left // stride * stride
        return first_row + (math.ceil(left / stride) * stride if self.even else left)

    def batches_after(self, first_row: int) -> int:
        """Return the batches of this process that come after so many rows, of all processes."""
        rows, size = len(self.sampler), self.batch_size  # type: ignore[arg-type]
        return len(range(first_row + self.rank * size, self._end(rows, first_row), self.stride))

    def __len__(self) -> int:
        return self.batches_after(0)
