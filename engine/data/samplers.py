"""Samplers: the order of samples as a function of seed and epoch, so that a run can resume at any position."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ..checkpoint.rng_state import random_states, restore_random_states


class ShuffledSampler(Sampler[int]):
    """All samples in a random order, which is new in each epoch: the permutation that torch draws from `seed + epoch`.

    transformers' Trainer uses the same order, through accelerate's `SeedableRandomSampler`.
    """

    def __init__(self, dataset: Sized, seed: int) -> None:
        """Shuffle the samples of `dataset`, starting at epoch 0."""
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        yield from torch.randperm(len(self.dataset), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.dataset)


class UserSampler(Sampler[int]):
    """The order of a sampler that the user wrote. It keeps the RNG states, so it can draw that order again."""

    def __init__(self, sampler: Any) -> None:
        """Take the order of `sampler`, any iterable of sample indices with a length."""
        self.sampler = sampler
        self.state: dict[str, Any] | None = None
        """RNG states from which the last order was drawn; None before the first. `global` has the states of all global
        generators, `own` the state of the sampler's own generator, if it has one."""
        self._again = False

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch, from 0, on to the sampler, if it has `set_epoch`."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def repeat(self) -> None:
        """Draw the order of `state` again at the next iteration."""
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
            restore_random_states(before)  # the earlier session drew this order before it saved these states
            return iter(rows)
        self.state = {"global": random_states(), **({"own": generator.get_state()} if own else {})}
        return iter(list(self.sampler))

    def __len__(self) -> int:
        return len(self.sampler)


class BatchedSampler(Sampler[list[int]]):
    """The batches of one rank: every `world_size`-th batch of a sampler, starting at the rank's number.

    With `even`, all ranks get the same number of full batches. The last ones are filled up with samples from the start,
    as accelerate does; `drop_last` drops batches that cannot be filled. Without `even`, each sample comes exactly once.
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
        """Batch the samples of `sampler`.

        Args:
            sampler: the order of all samples, the same on all ranks.
            batch_size: samples per batch of one rank.
            drop_last: drop the last incomplete batches.
            rank: this rank.
            world_size: number of ranks.
            even: give all ranks the same number of full batches.
        """
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.even = even
        self.first = 0
        """Batches of this rank to skip at the start of the next iteration."""
        self.blank = 0
        """Batches without samples to yield before the others."""
        self.first_row = 0
        """Samples, over all ranks, to skip at the start of the next iteration."""

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch, from 0, on to the sampler, if it has `set_epoch`."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def skip(self, batches: int, blank: int = 0) -> None:
        """Skip batches of this rank at the start of the next iteration, which repeats the order of its epoch.

        Args:
            batches: number of batches to skip.
            blank: number of batches without samples to yield instead.
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
        """Samples of one batch, over all ranks."""
        return self.batch_size * self.world_size

    def _end(self, rows: int, first_row: int) -> int:
        """Return the index at which no further batch starts on any rank.

        Args:
            rows: number of samples.
            first_row: index at which the first batch starts.
        """
        stride, left = self.stride, max(0, rows - first_row)
        if self.drop_last:
            return first_row + left // stride * stride
        return first_row + (math.ceil(left / stride) * stride if self.even else left)

    def batches_after(self, first_row: int) -> int:
        """Return the number of batches of this rank after `first_row` samples of all ranks."""
        rows, size = len(self.sampler), self.batch_size  # type: ignore[arg-type]
        return len(range(first_row + self.rank * size, self._end(rows, first_row), self.stride))

    def __len__(self) -> int:
        return self.batches_after(0)
