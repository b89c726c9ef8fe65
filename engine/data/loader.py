"""The loader: a DataLoader that prefetches one batch and resumes exactly where another loader stopped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from ..checkpoint.own_generators import OwnGenerators, restore_states
from ..checkpoint.rng_state import QuickStates, random_states
from .columns.choosing import columnar, with_columns
from .epoch_progress import END, EpochProgress, at_row, by_name, by_number
from .length_sampler import LengthGroupedSampler
from .open_loaders import opened
from .samplers import BatchedSampler, UserSampler
from .stream_state import keeps_state, restore_dataset
from .streaming_shards import PaddedBatch, StreamEndSync, StreamShard
from .workers.forking import wait_for_idle_threads
from .workers.running import RunningWorkers
from .workers.signals import block_sigterm
from .workers.startup import WorkerBatch, WorkerInit

_profiler_enabled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


class Loader(DataLoader[Any]):
    """A DataLoader that prefetches one batch, passes the epoch to its sampler, and saves its position.

    The collator makes the next batch before the step on the current batch, as with transformers. So a collator and a
    model that both draw random numbers draw the same numbers as with transformers.
    """

    stream_end: StreamEndSync | None = None
    """Makes all ranks end an epoch together if each rank reads its own part of a stream. None in all other cases."""
    padding_rows = 0
    """Number of rows that only fill up the last yielded batch, at its end. Evaluations do not count these rows."""
    batch_rows: int | None = None
    """Number of samples of the last yielded batch, padding rows included. For a map-style dataset, the sampler counts
    the samples. For a stream that is evaluated or packed, the collator counts them if the batch size is above 1. None
    in all other cases."""
    _progress: EpochProgress | None = None
    """Progress of the current or last iteration."""
    _state_to_resume: dict[str, Any] | None = None
    """State from which the next iteration resumes."""
    _epoch = 0
    """The epoch of the next iteration."""
    _resumes = True
    """Whether a checkpoint may need the position of the next iteration."""
    _direct = False
    """Whether the current iterator of torch makes batches in this process, from indices."""
    _tracked = False
    """Whether a training reads its batches from this loader."""
    _tracks_next = False
    """Whether the training starts the next iteration."""

    def __init__(self, *args: Any, in_group: bool = False, **options: Any) -> None:
        """Create a loader.

        Args:
            *args: positional arguments of torch's DataLoader.
            in_group: whether this process is in a process group with other ranks. If True, the loader calls
                `wait_for_idle_threads` before it starts workers.
            **options: keyword arguments of torch's DataLoader.
        """
        super().__init__(*args, **options)
        self._in_group = in_group
        self._rng = QuickStates()
        self._own: OwnGenerators | None = None
        self._running = RunningWorkers()

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the sampler, and to the dataset if it has `set_epoch`. Epochs count from 0."""
        self._epoch = epoch
        if isinstance(self.batch_sampler, BatchedSampler):
            self.batch_sampler.set_epoch(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return super().__len__() if self._stream is None else self._stream.batches()

    def batches_after(self, rows: int) -> int | None:
        """Return how many batches of this rank are left in the epoch when all ranks together have used `rows` samples.

        Return None if the loader has neither a `BatchedSampler` nor a stream.

        Raises:
            TypeError: if the sampler or the stream has no length.
        """
        if isinstance(self.batch_sampler, BatchedSampler):
            return self.batch_sampler.batches_after(rows)
        return None if self._stream is None else self._stream.batches(rows // self.parts[0])

    @property
    def starts_at_row(self) -> bool:
        """Whether the run resumed inside this epoch with another batch size or world size."""
        return self._progress is not None and bool(self._progress.first.get(0))

    @property
    def parts(self) -> list[int]:
        """Two numbers: how many ranks read separate parts of a stream, and how many workers each rank has.

        Without workers, the second number is 1. If every rank reads the whole stream, the first number is 1. For a
        map-style dataset, both numbers are 1.
        """
        if self._stream is None:
            return [1, 1]
        return [1 if self.stream_end is None else self.stream_end.ranks.world_size, max(1, self.num_workers)]

    @property
    def grouping(self) -> LengthGroupedSampler | None:
        """The sampler that groups samples by length; None if there is none."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        return sampler if isinstance(sampler, LengthGroupedSampler) else None

    @property
    def _stream(self) -> StreamShard | None:
        return self.dataset if isinstance(self.dataset, StreamShard) else None

    @property
    def _stride(self) -> int:
        """The samples per batch of this rank, times the number of ranks that share the sampler or the stream."""
        source: Any = self.batch_sampler if self._stream is None else self._stream
        return int(source.stride)

    @property
    def _drawing_sampler(self) -> LengthGroupedSampler | UserSampler | None:
        """The sampler, if its attribute `state` has the RNG states to repeat its last order; otherwise None."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        return sampler if isinstance(sampler, (LengthGroupedSampler, UserSampler)) else None

    @property
    def reads_columns(self) -> bool:
        """Whether batches are made from columns, without a Python object for each sample."""
        return isinstance(self.batch_sampler, BatchedSampler) and columnar(self.dataset, self.collate_fn) is not None

    # Saving and resuming the position.

    def resume_state(self) -> dict[str, Any]:
        """Return the position of this loader as a state for `resume_from`; `{}` before the first iteration."""
        if self._progress is None:
            return {}
        sampler = self._drawing_sampler
        state = self._progress.resume_state(self.parts, None if sampler is None else sampler.state)
        return {**state, **self._running.resume_state()}

    def resume_from(self, state: dict[str, Any]) -> bool:
        """Make the next iteration start at the position of `state`, in the same epoch.

        If the batch size changed, the iteration skips the finished samples. It does the same if another number of ranks
        or workers reads a stream. Otherwise, the iteration starts exactly where the saved iteration was.

        Args:
            state: some or all entries of `resume_state`, and `row`: the number of finished samples of the epoch,
                over all ranks. If the batch size changed, the caller removes the entry `pulled`, the number of batches.

        Returns:
            Whether the state is used. False if the state is empty: the method then changes nothing.
        """
        if not state:
            return False
        if self.persistent_workers:
            self._running.inherit_epoch(state)
        if "pulled" in state and state.get("parts", self.parts) == self.parts:
            self._state_to_resume = state
            return True
        warns = self._stream is not None and (self.stream_end or self._stream).ranks.rank == 0
        self._state_to_resume = at_row(state, self.parts, is_stream=self._stream is not None, warns=warns)
        return True

    def inherit_workers(self, state: dict[str, Any]) -> None:
        """Make persistent workers start with the RNG states and the epoch of the workers of an earlier session.

        Without persistent workers, the method does nothing.

        Args:
            state: the result of `resume_state` in the earlier session. Only the entries `workers` and `workers_epoch`
                are read. A missing entry changes nothing.
        """
        if self.persistent_workers:
            self._running.inherit(state)

    def worker_states(self) -> dict[str, Any] | None:
        """Return the RNG states of the persistent workers, by worker number as text; None if no such worker started."""
        return None if self._progress is None or not self.persistent_workers else by_name(self._progress.workers)

    def skip(self, batches: int) -> bool:
        """Make the next iteration start after `batches` batches, without reading the samples of these batches.

        Returns:
            Whether the batches will be skipped. False for a stream: the method then changes nothing.
        """
        if isinstance(self.batch_sampler, BatchedSampler):
            # Workers take turns. Blank batches keep the assignment of the other batches to workers.
            self.batch_sampler.skip(batches, blank=batches % self.num_workers if self.num_workers else 0)
            return True
        return False

    def track_training(self, next_iteration: bool = False) -> None:
        """Make `resume_state` return the position of the training.

        Other code that iterates over this loader does not change this position: it gets an iterator over a copy.

        Args:
            next_iteration: True if the training makes the next call of `iter(loader)`. False if other code makes it.
        """
        self._tracked, self._tracks_next = True, next_iteration

    def independent(self) -> Loader:
        """Return a loader of the same batches whose iterations do not change the position of a training.

        If no training uses this loader, the result is this loader. Otherwise the result is a copy with its own sampler
        and its own workers. The copy starts at the first batch of the current epoch.
        """
        if not self._tracked:
            return self
        twin = copy.copy(self)
        # A DataLoader refuses assignments to some of these names. Persistent workers serve one iteration at a time.
        name = "batch_sampler" if self._stream is None else "dataset"
        source: Any = getattr(self, name)
        vars(twin)[name] = own = source.from_start()
        vars(twin).update(_iterator=None, persistent_workers=False, _resumes=False, _tracked=False, _progress=None)
        twin._running = RunningWorkers()
        # torch draws a seed for the workers from this generator, and not from the global one.
        twin.generator = torch.Generator().manual_seed(torch.initial_seed())
        if self._stream is not None and own.rows is source.rows and self._progress is not None:
            self._progress.lose_dataset_state()
        return twin

    # The dataset's and the collator's own random generators.

    def _own_generators(self) -> OwnGenerators:
        """Find the random generators of the dataset and the collator. Warn once of generators that cannot be saved."""
        if self._own is None:
            self._own = OwnGenerators({"dataset": self.dataset, "collator": self.collate_fn})
        else:
            self._own.find()
        self._own.warn_of_unsaved()
        return self._own

    def _states_at_start(self) -> dict[str, Any]:
        """Return the current RNG states; {} if no checkpoint needs the position, as in an evaluation."""
        return {**random_states(), "own": self._own_generators().read()} if self._resumes else {}

    # Iterating.

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._tracked and not self._tracks_next:
            return iter(self.independent())
        self._tracks_next = False
        state, self._state_to_resume = self._state_to_resume, None
        began = (state or {}).get("began") or self._states_at_start()
        before, progress = self._progress, EpochProgress(began, resumes=self._resumes)
        self._progress = progress
        if self.persistent_workers and before is not None:
            progress.continue_workers(before.workers, is_stream=self._stream is not None)
        if state is None:
            return self._prefetched(self._from_start(progress), progress)
        progress.restore(state, self.parts)
        if progress.ahead is END:
            self.inherit_workers(state)
            return iter(())
        return self._prefetched(self._resumed(state, progress), progress)

    def without_resume(self) -> Iterator[Any]:
        """Return a faster iterator for evaluations.

        The iterator does not read the RNG states before each batch. So no run can resume in the middle of the
        iteration.
        """
        self._resumes = False
        try:
            return iter(self)
        finally:
            self._resumes = True

    def _from_start(self, progress: EpochProgress) -> Iterator[Any]:
        """Return an iterator of torch over all batches of an epoch."""
        states = self._running.take_states()
        if states is None:
            return self._started(progress)
        progress.continue_workers(states, is_stream=self._stream is not None)
        # Persistent workers were seeded in an earlier epoch. A separate generator keeps torch from drawing another seed
        # for them from the global generator.
        self.generator = torch.Generator()
        try:
            return self._started(progress)
        finally:
            self.generator = None

    def _resumed(self, state: dict[str, Any], progress: EpochProgress) -> Iterator[Any]:
        """Restore the RNG states and the position of `state`, and return an iterator over the remaining batches.

        The method also sets `progress` to the position of `state`.
        """
        own = self._own_generators()
        restore_states(progress.began, own)
        if self._drawing_sampler is not None:
            self._drawing_sampler.state = state.get("order")
        # Checkpoints of format 3 and earlier hold the prefetched batch itself, and count it.
        to_read, ahead, before = state["pulled"], state.get("ahead"), state.get("before")
        has_ahead = ahead is not None
        if isinstance(self.batch_sampler, BatchedSampler):
            self.skip(to_read)
            self.batch_sampler.first_row = progress.first.get(0, 0)
            progress.pulled, to_read = to_read, 0
            progress.workers = by_number(state["workers"])
        elif restore_dataset(self.dataset, state["dataset"]):
            progress.pulled, to_read = to_read - has_ahead, int(has_ahead)
        elif self._stream is not None:
            self._stream.first_rows = progress.first
            progress.continue_workers(by_number(state.get("workers_began", {})), is_stream=True)
        batches = self._started(progress)
        for _ in range(to_read):
            self._pull(batches, progress)
        if ahead is not None:
            progress.ahead, progress.part = PaddedBatch(ahead["batch"], ahead.get("extra", 0)), state.get("part", 0)
        elif before is not None:
            restore_states({**progress.began, **before}, own)
            progress.ahead = self._pull(batches, progress)
        elif self._stream is not None and not progress.pulled:
            # A stream may draw random numbers at its start. It must draw them from the RNG states of that time.
            progress.ahead = self._pull(batches, progress)
        return batches

    def _started(self, progress: EpochProgress) -> Iterator[Any]:
        """Start the workers, if the loader has any, and return torch's iterator."""
        if isinstance(self.worker_init_fn, WorkerInit):
            self.worker_init_fn.states, self.worker_init_fn.epoch = progress.workers, self._running.epoch
        # Only a stream without workers restores its own position. Map-style datasets resume by sample number, and
        # workers by number of batches.
        indexed = isinstance(self.batch_sampler, BatchedSampler)
        progress.keeps_state = not self.num_workers and not indexed and keeps_state(self.dataset)
        if self.num_workers and self._in_group:
            wait_for_idle_threads()
        with block_sigterm() if self.num_workers else nullcontext(), with_columns(self, indexed):
            batches: Iterator[Any] = super().__iter__()
        self._direct = indexed and isinstance(batches, _SingleProcessDataLoaderIter)
        if self._stream is not None:
            self._stream.first_rows = {}  # the workers have received them
        if self.persistent_workers:
            self._running.note_started(batches, self._epoch, self)
        return batches

    def _prefetched(self, batches: Iterator[Any], progress: EpochProgress) -> Iterator[Any]:
        """Yield the batches, and update `progress`. Fetch the next batch before yielding the current batch."""
        stride = self._stride
        indexed = self.batch_sampler if isinstance(self.batch_sampler, BatchedSampler) else None
        if progress.ahead is None:
            progress.ahead = self._pull(batches, progress)
            if progress.resumes:
                self._own_generators()  # some are created with the first batch
        length = None if indexed is None else indexed.samples
        with opened(self):
            while progress.ahead is not END:
                batch, part, padding_rows, rows = progress.ahead, progress.part, 0, None
                if isinstance(batch, PaddedBatch):
                    batch, padding_rows, rows = batch.batch, batch.padding_rows, batch.rows
                progress.ahead = self._pull(batches, progress)
                done = progress.rows.get(part, 0)
                progress.rows[part] = done + stride
                noted = vars(self)  # `DataLoader.__setattr__` is slow
                noted["padding_rows"] = padding_rows
                noted["batch_rows"] = rows if indexed is None else indexed.rows_at(done, length)
                yield batch

    def _pull(self, batches: Iterator[Any], progress: EpochProgress) -> Any:
        """Return the next batch of torch's iterator, and count this batch in `progress`; return `END` at the end."""
        if progress.keeps_state:
            progress.dataset = self.dataset.state_dict()  # type: ignore[attr-defined] # `keeps_state` checked it
        if not self.num_workers and progress.resumes:
            progress.before = self._rng.read()
            if self._own is not None and self._own.found:
                progress.own = self._own.read()
        try:
            # `next` of torch's iterator also makes a record for the profiler, which takes longer than a small batch.
            direct = self._direct and not _profiler_enabled()
            batch = batches._next_data() if direct else next(batches)  # type: ignore[attr-defined]
            while isinstance(batch, WorkerBatch) and batch.batch is None:
                batch = next(batches)
        except StopIteration as end:
            if isinstance(self.batch_sampler, BatchedSampler):
                self.batch_sampler.check_end(end, progress.pulled)
            batch = END
        if isinstance(batch, WorkerBatch):
            progress.maker = batch.worker, progress.workers.get(batch.worker)
            progress.workers[batch.worker] = batch.states
            progress.part = 0 if self._stream is None else batch.worker
            batch = batch.batch
        if self.stream_end is not None:
            batch = self.stream_end.align(batch, END)
        progress.pulled += batch is not END
        if self.num_workers and self._stream is not None and self.stream_end is None:
            self._stream.check_length(progress.pulled, self.num_workers)
        return batch
