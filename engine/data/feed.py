"""The feed: fetches the batches of each optimizer step from a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import torch

from ...events.activity import FETCH, IDLE, Activity
from ...events.timeline import COPY, DATA, ENGINE, STEP, Timeline, now
from .batches import rows_of, to_device
from .build import batch_sizes
from .position import Position


@dataclass
class Window:
    """The batches of one optimizer step."""

    items: list[Any]
    """The batches, on their device."""
    batches: int
    """Number of batches."""
    rows: int
    """Number of samples: those of this rank, multiplied by the number of ranks."""


@dataclass(frozen=True)
class _Read:
    """A batch that the feed read for an override of `get_batch_samples`."""

    batch: Any
    """The batch, on its device."""
    known: int | None
    """The number of samples that the loader counted; None if the loader does not count them."""
    size: int | None
    """The first dimension of the batch when the feed read it."""


class Feed:
    """Fetches the batches of each step from a loader. A `Window` has the batches of one step.

    The last window of an epoch may have fewer batches. The loader may be any iterable of batches. The feed uses the
    methods `set_epoch`, `resume_from`, `inherit_workers`, `skip` and `track_training`, and the attribute `batch_rows`,
    if the loader has them. `Loader` has all of them.
    """

    def __init__(
        self,
        loader: Any,
        accumulate: int,
        device: torch.device,
        world_size: int = 1,
        non_blocking: bool = False,
        activity: Activity | None = None,
        accumulation_in: Callable[[int], int] | None = None,
        collect: Callable[[Iterator[Any], int], list[Any]] | None = None,
        timeline: Timeline | None = None,
        position: Position | None = None,
        batches_per_epoch: int | None = None,
    ) -> None:
        """Create a feed.

        Args:
            loader: yields the batches of an epoch each time it is iterated over.
            accumulate: batches per optimizer step.
            device: the device to which batches are copied.
            world_size: number of ranks.
            non_blocking: copy batches from pinned memory while the device computes.
            accumulation_in: receives an epoch, from 0, and returns its batches per optimizer step. None: each epoch has
                `accumulate` batches per step.
            activity: the activity of this process, which the feed sets to `FETCH` while it fetches a batch.
            collect: receives an iterator over the rest of the epoch and the number of batches of the step. Returns the
                batches of the step. By default, the feed fetches the next batches.
            timeline: records the time of fetching and copying. By default, this time is not reported.
            position: the position of the run, in which the feed notes the batches that it fetched for a step.
            batches_per_epoch: number of batches of one rank in an epoch. With a number, the feed calls `collect` once
                for each step of the epoch. With None, the feed calls `collect` until it returns no batch.
        """
        self.loader = loader
        self.accumulate = accumulate
        self.accumulation_in = accumulation_in or (lambda epoch: accumulate)
        self.device = device
        self.world_size = world_size
        self.non_blocking = non_blocking
        self.activity = Activity() if activity is None else activity
        self.collect = collect
        self.timeline = Timeline() if timeline is None else timeline
        self.position = Position() if position is None else position
        self.batches_per_epoch = batches_per_epoch
        self._batches: Iterator[Any] = iter(())
        self._sizes: Iterator[int] = iter(())
        self._counts: Iterator[int] = iter(())
        self._loader_state: dict[str, Any] = {}
        self._restore_rng: Callable[[], None] = _do_nothing
        self._restores_late = False

    def resume(
        self,
        loader_state: dict[str, Any],
        restore_rng: Callable[[], None],
        after_first_window: bool = False,
    ) -> None:
        """Make the next call of `begin` resume where an earlier session stopped.

        Args:
            loader_state: the result of the loader's `resume_state`; an empty dict if there is no saved state.
            restore_rng: restores the RNG states. The feed calls this function once.
            after_first_window: when to call `restore_rng` if the run resumes in the middle of an epoch. False: before
                the batches of the first step are fetched. True: after this fetch, as transformers does. At the start
                of an epoch, the value has no effect.
        """
        self._loader_state, self._restore_rng, self._restores_late = loader_state, restore_rng, after_first_window

    def reach(self, batches_done: int) -> None:
        """Restore the RNG states of a resume, if the session resumes at the start of an epoch or at the end of the run.

        Handlers of `on_epoch_begin` and `on_train_end` then draw the same numbers as in an uninterrupted run. If the
        session resumes in the middle of an epoch, the method does nothing: `begin` or `take` restores the states later.

        Args:
            batches_done: number of batches of the next epoch that this rank has already trained on; 0 at the end.
        """
        if not batches_done:
            self._restore()

    def begin(self, epoch: int, batches_done: int) -> None:
        """Start an epoch at the first batch that is not done.

        If the loader cannot skip the done batches, the feed reads and drops these batches. The start of an epoch draws
        random numbers. If the run resumes at the start of an epoch, the feed first restores the RNG states and then
        draws. If the run resumes in the middle of an epoch, the feed first draws and then restores the RNG states.

        Args:
            epoch: the epoch, from 0.
            batches_done: number of batches of the epoch that this rank has already trained on.
        """
        self.accumulate = self.accumulation_in(epoch)
        self._counts = self._batches_of_steps(batches_done)
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
        self._sizes = islice(batch_sizes(self.loader), batches_done, None)
        state, self._loader_state = self._loader_state, {}
        if not batches_done:
            if state and hasattr(self.loader, "inherit_workers"):
                self.loader.inherit_workers(state)
            self._restore()
            self._batches = self._iterate()
            return
        to_read = 0
        if not (state and hasattr(self.loader, "resume_from") and self.loader.resume_from(state)):
            skips = getattr(self.loader, "skip", None)
            to_read = 0 if skips is not None and skips(batches_done) else batches_done
        self._batches = self._iterate()
        for _ in range(to_read):
            next(self._batches, None)
        if not self._restores_late:
            self._restore()

    def close(self) -> None:
        """Stop the workers of an epoch that the training left before its end. Persistent workers keep running."""
        self._batches = iter(())

    def _iterate(self) -> Iterator[Any]:
        """Return an iterator over the loader. `Loader.resume_state` returns the position of this iterator."""
        if hasattr(self.loader, "track_training"):
            self.loader.track_training(next_iteration=True)
        return iter(self.loader)

    def _restore(self) -> None:
        """Call the function `restore_rng` that `resume` received.

        If this method has called the function already, or if `resume` was not called, do nothing.
        """
        restore, self._restore_rng = self._restore_rng, _do_nothing
        restore()

    def take(self) -> Window | None:
        """Fetch and return the batches of the next step; return None at the end of the epoch."""
        marks = self.timeline.marks
        marks += (STEP, now())
        self.activity.name = FETCH
        if self.collect is not None:
            return self._collected(self.collect)
        items, rows = [], 0
        for batch in self._batches:
            known = self._known_rows()
            rows += rows_of(batch) or 0 if known is None else known
            marks += (COPY, now())
            items.append(to_device(batch, self.device, self.non_blocking))
            marks += (DATA, now())
            if len(items) == self.accumulate:
                break
        self._restore()
        self.position.fetched = len(items)
        self.activity.name = IDLE
        marks += (ENGINE, now())
        if not items:
            self.timeline.look()  # no step follows
        return Window(items, len(items), rows * self.world_size) if items else None

    def _batches_of_steps(self, batches_done: int) -> Iterator[int]:
        """Return an iterator that yields the number of batches for each remaining step of the epoch.

        If the number of batches in the epoch is unknown, the iterator does not end.
        """
        total = self.position.length or self.batches_per_epoch
        if total is None:
            return repeat(self.accumulate)
        places = range(batches_done, total, self.accumulate)
        return (min(self.accumulate, total - place) for place in places)

    def _known_rows(self) -> int | None:
        """Return the number of samples of the last batch that the loader yielded; None if this number is unknown."""
        loader = self.loader
        known: int | None = loader.batch_rows if hasattr(loader, "batch_rows") else next(self._sizes, None)
        return known

    def _collected(self, collect: Callable[[Iterator[Any], int], list[Any]]) -> Window | None:
        """Fetch the batches of the next step with `collect`; return None if `collect` returns no batch."""
        read: list[_Read] = []

        def fetched() -> Iterator[Any]:
            for batch in self._batches:
                known = self._known_rows()
                moved = to_device(batch, self.device, self.non_blocking)
                read.append(_Read(moved, known, rows_of(moved)))
                yield moved

        count = next(self._counts, 0)
        items = collect(fetched(), count) if count else []
        self._restore()
        self.position.fetched = len(items)
        self.activity.name = IDLE
        self.timeline.marks.extend((ENGINE, now()))
        rows = sum(_rows_in(item, _origin(position, items, read)) for position, item in enumerate(items))
        if not items:
            self.timeline.look()
        return Window(items, len(items), rows * self.world_size) if items else None


def _origin(position: int, items: list[Any], read: list[_Read]) -> _Read | None:
    """Return the read batch that belongs to a result of an override of `get_batch_samples`; None if unknown.

    If the result is a read batch, return this batch. If the result is another object, and the override returned as many
    results as it read batches, return the read batch at the same position.

    Args:
        position: the position of the result in `items`.
        items: the results of the override.
        read: the batches that the override read.
    """
    same = next((each for each in read if each.batch is items[position]), None)
    return read[position] if same is None and len(read) == len(items) else same


def _rows_in(item: Any, origin: _Read | None) -> int:
    """Return the number of samples of `item`, a result of an override of `get_batch_samples`.

    If `item` has as many rows as the batch `origin`, return the number of samples that the loader counted for `origin`.
    This is also correct for a time-major batch, in which a row is not a sample. Otherwise, or if the loader did not
    count the samples, return the number of rows of `item`; 0 if unknown.
    """
    size = rows_of(item)
    if origin is not None and origin.known is not None and origin.size == size:
        return origin.known
    return size or 0


def _do_nothing() -> None:
    """Do nothing. A feed calls this function if it has no RNG states to restore."""
