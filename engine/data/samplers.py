"""Samplers: the order of samples and the batches of each rank, so that a run can resume at any position."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Sampler, SequentialSampler

from ...events.errors import DataError
from ..checkpoint.own_generators import OwnGenerators
from ..checkpoint.rng_state import random_states, restore_random_states


class ShuffledSampler(Sampler[int]):
    """A sampler with a new random order in each epoch: the permutation that torch draws with the seed `seed + epoch`.

    transformers' Trainer uses the same order, through accelerate's `SeedableRandomSampler`.
    """

    def __init__(self, dataset: Sized, seed: int) -> None:
        """Create a sampler of all samples of `dataset`. The epoch is 0 until the first call of `set_epoch`."""
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Epochs count from 0."""
        self.epoch = epoch

    def order(self) -> Sequence[int]:
        """Draw the order of the epoch, and return the sample indices. They need 8 bytes each. A list would need 40."""
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order: Any = torch.randperm(len(self.dataset), generator=generator).numpy()
        return memoryview(order)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order())

    def __len__(self) -> int:
        return len(self.dataset)


class UserSampler(Sampler[int]):
    """A wrapper of a sampler of the user.

    The wrapper stores the RNG states before it draws an order. With these states it can draw the same order again.
    """

    def __init__(self, sampler: Any) -> None:
        """Use the order of `sampler`: an iterable of sample indices that has a length."""
        self.sampler = sampler
        self.state: dict[str, Any] | None = None
        """RNG states from which the last order was drawn; None before the first order.

        `global` has the states of all global generators, and `generators` has the states of the sampler's own
        generators. Checkpoints of earlier versions have the state of `sampler.generator` as `own`."""
        self._again = False
        self._order: list[int] | None = None
        """The order of the epoch; None before it is drawn."""

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the sampler, if the sampler has `set_epoch`. Epochs count from 0."""
        self._order = None
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def same_order(self) -> list[int]:
        """Return the order of the current epoch, so that a copy of the loader yields the same samples.

        If the epoch has no order yet, draw an order, and then restore the RNG states.
        """
        if self._order is not None:
            return self._order
        with _states_restored(OwnGenerators({"sampler": self.sampler})):
            return list(self.sampler)

    def repeat(self) -> None:
        """Make the next iteration draw the last order again, from the RNG states in the attribute `state`.

        If `state` is None, do nothing.
        """
        self._again = self.state is not None

    def __iter__(self) -> Iterator[int]:
        return iter(self.order())

    def order(self) -> list[int]:
        """Draw and return the order of the next iteration: the sample indices."""
        self._order = self._draw()
        return self._order

    def _draw(self) -> list[int]:
        own = OwnGenerators({"sampler": self.sampler})
        if self._again and self.state is not None:
            self._again = False
            # The states before the block come from the checkpoint. The earlier session saved it after it drew this
            # order.
            with _states_restored(own):
                restore_random_states(self.state["global"])
                own.restore(self.state.get("generators", {}))
                if "own" in self.state and isinstance(
                    generator := getattr(self.sampler, "generator", None), torch.Generator
                ):
                    generator.set_state(self.state["own"])
                return list(self.sampler)
        self.state = {"global": random_states(), "generators": own.read()}
        return list(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


@contextmanager
def _states_restored(own: OwnGenerators) -> Iterator[None]:
    """At the end of a `with` block, restore the global RNG states and the states of the generators in `own`."""
    before, before_own = random_states(), own.read()
    try:
        yield
    finally:
        restore_random_states(before)
        own.restore(before_own)


def _order_of(sampler: Sampler[int]) -> Sequence[int]:
    """Return the sample indices that a sampler yields in an epoch, in a form that needs little memory if possible."""
    if type(sampler) is SequentialSampler:
        return range(len(sampler.data_source))
    if type(sampler) is ShuffledSampler or type(sampler) is UserSampler:
        return sampler.order()
    return list(sampler)


class BatchedSampler(Sampler[list[int]]):
    """The batches of one rank: the batches `rank`, `rank + world_size` and so on of a sampler, counted from 0.

    - If `drop_last` is True, the last samples are dropped if they do not fill a batch on every rank.
    - Otherwise, if `even` is True and there are several ranks, samples from the start of the epoch fill up the last
      batches, as in accelerate. All ranks then get the same number of full batches.
    - Otherwise each sample comes exactly once.
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
            drop_last: drop the last samples, if they do not fill a batch on every rank.
            rank: this rank.
            world_size: number of ranks.
            even: whether samples from the start of the epoch fill up the last batches. No effect with `drop_last` or
                with a single rank.
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
        """Number of empty batches that the next iteration yields before all other batches."""
        self.first_row = 0
        """Samples, over all ranks, to skip at the start of the next iteration."""
        self.exhausted = False
        """Whether the last iteration yielded all of its batches."""
        self.drawn: int | None = None
        """Samples in the order of the last iteration, over all ranks; None before the first iteration."""
        self.limit: int | None = None
        """The largest number of batches of each rank in an epoch; None for all batches. Later samples are left out."""

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the sampler, if the sampler has `set_epoch`. Epochs count from 0."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def skip(self, batches: int, blank: int = 0) -> None:
        """Make the next iteration skip its first batches on this rank.

        If the attribute `sampler` has the RNG states of its last order, the next iteration draws this order again.

        Args:
            batches: number of batches to skip.
            blank: number of empty batches to yield first, so that each batch gets the same worker as without the skip.
                Worker 0 gets the first batch of an iteration. For example, with 4 workers and 6 skipped batches, two
                empty batches give the next batch to worker 2.
        """
        self.first, self.blank = batches, blank
        if hasattr(self.sampler, "repeat"):
            self.sampler.repeat()

    def from_start(self) -> BatchedSampler:
        """Return a sampler with the same batches in the same order, which starts at the first batch.

        A position that was set on this sampler, such as by `skip`, does not apply to the returned sampler.
        """
        twin = copy.copy(self)
        twin.first = twin.blank = twin.first_row = 0
        if hasattr(self.sampler, "same_order"):
            twin.sampler = self.sampler.same_order()
        return twin

    def __iter__(self) -> Iterator[list[int]]:
        first_row, self.first_row, self.exhausted = self.first_row, 0, False
        rows = _order_of(self.sampler)
        self.drawn = len(rows)
        size, stride = self.batch_size, self.stride
        if self.limit is not None:
            rows = rows[: self.limit * stride]
        first, self.first = self.first, 0
        blank, self.blank = self.blank, 0
        yield from ([] for _ in range(blank))
        for start in range(first_row + first * stride + self.rank * size, self._end(len(rows), first_row), stride):
            batch = [*rows[start : start + size]]
            if self.world_size > 1 and self.even:
                batch = [rows[(start + offset) % len(rows)] for offset in range(size)]
            if batch:
                yield batch
        self.exhausted = True

    def check_end(self, end: StopIteration, batches: int) -> None:
        """Check that an epoch ends because there are no more batches.

        Args:
            end: the StopIteration that ended the epoch.
            batches: number of batches that were read in the epoch.

        Raises:
            DataError: if the dataset or the collator raised `end`, in this process or in a worker.
        """
        if end.value is not None or not self.exhausted:
            raise DataError(
                f"The dataset or the collator raised StopIteration at batch {batches + 1} of {len(self)}. It would end "
                "the epoch there. Raise another error, or return the sample."
            ) from end

    @property
    def stride(self) -> int:
        """The samples per batch of one rank, times the world size."""
        return self.batch_size * self.world_size

    @property
    def samples(self) -> int | None:
        """Samples of an epoch over all ranks; None if the sampler of the user has no length.

        The attribute `limit` does not reduce this number.
        """
        try:
            return len(self.sampler)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _end(self, rows: int, first_row: int) -> int:
        """Return the end of the epoch as a sample index. All batches of the epoch start before this index.

        The number of samples from `first_row` to the end is rounded to full batches on all ranks:

        - If the attribute `drop_last` is True, the number is rounded down.
        - Otherwise, if the attribute `even` is True, the number is rounded up.
        - Otherwise, the number is not rounded.

        Args:
            rows: number of samples.
            first_row: index of the sample at which the first batch of rank 0 starts.
        """
        stride, left = self.stride, max(0, rows - first_row)
        if self.drop_last:
            return first_row + left // stride * stride
        return first_row + (math.ceil(left / stride) * stride if self.even else left)

    def rows_at(self, done: int, length: int | None) -> int | None:
        """Return the number of samples in the next batch of this rank; None if the number is unknown.

        Args:
            done: samples of the epoch that are done, over all ranks.
            length: number of samples of the epoch; None if it is unknown.
        """
        if self.world_size > 1 and self.even:
            return self.batch_size
        return None if length is None else max(0, min(self.batch_size, length - done - self.rank * self.batch_size))

    def repeated_before(self, done: int) -> int:
        """Return how many samples at the end of a batch of this rank are repeated samples that fill up the batch.

        Args:
            done: number of samples of the epoch that are done after this batch, over all ranks.
        """
        if self.world_size == 1 or not self.even or self.samples is None:
            return 0
        start = done - self.stride + self.rank * self.batch_size
        return self.batch_size - max(0, min(self.batch_size, self.rows() - start))

    def batches_after(self, first_row: int) -> int:
        """Return how many batches of this rank are left when all ranks together have used `first_row` samples."""
        rows, size = self.rows(), self.batch_size
        return len(range(first_row + self.rank * size, self._end(rows, first_row), self.stride))

    def rows(self) -> int:
        """Return the number of samples of an epoch over all ranks; at most `limit * stride` if `limit` is set.

        Raises:
            TypeError: if the sampler of the user has no length.
        """
        rows = len(self.sampler)  # type: ignore[arg-type]  # a sampler of the user may have no length: a TypeError
        return rows if self.limit is None else min(rows, self.limit * self.stride)

    def __len__(self) -> int:
        return self.batches_after(0)
