"""The loader: a DataLoader that fetches one batch ahead, and can go on exactly where another one was."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from ..checkpoint.rng_state import random_states, restore_random_states
from ..evaluation.outputs import set_seed
from .batches import map_tensors
from .collators.default import Collator
from .length_sampler import LengthGroupedSampler
from .samplers import BatchedSampler, GivenSampler
from .stream_state import keeps_state, restore_dataset
from .streaming_shards import EvenEnds, Filled, SharedStream
from .workers.forking import let_threads_rest
from .workers.signals import outlive_signals, starting_workers

logger = logging.getLogger(__name__)

_END = object()


@dataclass
class Passage:
    """One way through the data: how far it is, and what it began from."""

    began: dict[str, Any]
    """The random states at its beginning: from them, workers are seeded, and a stream is read anew."""
    first: dict[int, int] = field(default_factory=dict)
    """Rows, of all processes, that an earlier session took before the first batch: of each part of a stream, that is
    of what a worker reads, by its number; else of number 0."""
    rows: dict[int, int] = field(default_factory=dict)
    """Rows, of all processes, that are done: those and those of the batches that were given out."""
    part: int = 0
    """The part that the last batch was taken of."""
    pulled: int = 0
    """Batches taken from the dataset, that ahead among them."""
    ahead: Any = None
    """The batch that is fetched and not given out; `_END` once there is no further one."""
    keeps_state: bool = False
    """Whether the dataset says where it is, and that is what it is put back to."""
    dataset: Any = None
    """The dataset's own state before the last batch was taken, where it has one."""
    workers: dict[int, Any] = field(default_factory=dict)
    """The random states of the workers, after the last batch that was taken of each."""


class Loader(DataLoader[Any]):
    """Fetches one batch ahead, knows epochs, and says where in the data it is.

    Fetching ahead keeps the random draws of a collator in transformers' order: the next batch is drawn before the step
    on the current one.
    """

    ends: EvenEnds | None = None
    """Has processes that read streams of their own end together; None where they need not agree."""
    extra = 0
    """Rows, the last ones of the batch given out last, that fill it up and are counted elsewhere."""
    _passage: Passage | None = None
    _goal: dict[str, Any] | None = None
    _heirs: dict[int, Any] | None = None
    _iterating: Any = None

    def __init__(self, *args: Any, in_group: bool = False, **options: Any) -> None:
        """Load as torch's loader does; `in_group` says that the process is one of several that talk to each other."""
        super().__init__(*args, **options)
        self._in_group = in_group

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for an epoch, counted from 0, and tell a dataset that wants to know."""
        if isinstance(self.batch_sampler, BatchedSampler):
            self.batch_sampler.set_epoch(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return super().__len__() if self._stream is None else self._stream.batches()

    @property
    def _stream(self) -> SharedStream | None:
        return self.dataset if isinstance(self.dataset, SharedStream) else None

    def batches_after(self, rows: int) -> int | None:
        """Return the batches of this process that come after so many rows, of all processes; None if nobody knows."""
        if isinstance(self.batch_sampler, BatchedSampler):
            return self.batch_sampler.batches_after(rows)
        return None if self._stream is None else self._stream.batches(rows // self.parts[0])

    @property
    def parts(self) -> list[int]:
        """In how many parts the rows are read: by processes that have some of their own, and by workers of each."""
        if self._stream is None:
            return [1, 1]
        return [1 if self.ends is None else self.ends.ranks.world_size, max(1, self.num_workers)]

    @property
    def _stride(self) -> int:
        """Rows of a batch, over all processes that read the same."""
        source: Any = self.batch_sampler if self._stream is None else self._stream
        return int(source.stride)

    @property
    def grouping(self) -> LengthGroupedSampler | None:
        """The sampler that groups the rows by length; None where none does."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        return sampler if isinstance(sampler, LengthGroupedSampler) else None

    @property
    def _drawn(self) -> LengthGroupedSampler | GivenSampler | None:
        """The sampler whose order is drawn anew in each epoch from states that it keeps; None where there is none."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        return sampler if isinstance(sampler, (LengthGroupedSampler, GivenSampler)) else None

    def place(self) -> dict[str, Any]:
        """Return what another loader needs to go on exactly from here, as nested values with tensors.

        The batch that is fetched ahead is among it: fetched again, a collator that draws would make another of it. One
        of a kind that no checkpoint can hold is left out, and fetched again.
        """
        passage = self._passage
        if passage is None:
            return {}
        over = passage.ahead is _END
        ahead = _parted(passage.ahead)
        kept = not over and is_storable(ahead.batch)
        return {
            "began": passage.began,
            "first": _by_name(passage.first),
            "rows": _by_name(passage.rows),
            "parts": self.parts,
            "part": passage.part,
            "pulled": passage.pulled - (not over and not kept),
            "over": over,
            "ahead": {"batch": as_plain(ahead.batch), "extra": ahead.extra} if kept else None,
            "workers": _by_name(passage.workers),
            "order": None if self._drawn is None else self._drawn.state,
            "dataset": passage.dataset,
        }

    def go_to(self, place: dict[str, Any]) -> bool:
        """Begin the next iteration where `place()` was, in the same epoch; False if it does not say.

        Where batches were of another size or number of processes, or a stream was read by as many workers as it is not
        now, it says no more than which rows are done: those are left out, and batches begin anew behind them.

        Args:
            place: what `place()` returned, or some of it, and as `row` how many rows of the epoch were done in all.
        """
        if not place:
            return False
        if "pulled" in place and place.get("parts", self.parts) == self.parts:
            self._goal = place
            return True
        self._goal = {**place, "pulled": 0, "ahead": None, "over": False, "workers": {}, "dataset": None}
        if self._stream is None:
            # What rows that are indexed begin from only seeds workers, which would draw what they drew before again.
            self._goal["began"] = random_states()
        if "rows" not in place or place.get("parts") != self.parts:
            self._goal["rows"] = _by_name(self._dealt_out(place["row"]))
            self._warn_of(place.get("parts", [1, 1]))
        self._goal["first"] = self._goal["rows"]
        return True

    def _dealt_out(self, rows: int) -> dict[int, int]:
        """Return how many rows are done of each part, if there are so many in all, and about as many of each."""
        processes, workers = self.parts
        ends = [rows // processes * part // workers for part in range(workers + 1)]
        return {part: ends[part + 1] - ends[part] for part in range(workers)}

    def _warn_of(self, before: list[int]) -> None:
        if self._stream is not None and before != self.parts and (self.ends or self._stream).ranks.rank == 0:
            logger.warning(
                "The epoch was begun with its stream read in %d part(s), by processes of their own or by workers, and "
                "now there are %d: it is not known which rows of each are done, so that some may come twice in this "
                "epoch, and others not at all. With as many as before, each comes once.",
                *(math.prod(before), math.prod(self.parts)),
            )

    def take_over(self, place: dict[str, Any]) -> None:
        """Begin the next iteration, of a new epoch, with workers that go on where those of `place()` were."""
        if self.persistent_workers and "workers" in place:
            self._heirs = _by_number(place["workers"])

    def skip(self, batches: int) -> bool:
        """Begin the next iteration after this many batches, without reading their rows; False where it cannot."""
        if isinstance(self.batch_sampler, BatchedSampler):
            # Batches go round the workers: with some that are blank, each next one comes to the worker it would be of.
            self.batch_sampler.skip(batches, blank=batches % self.num_workers if self.num_workers else 0)
            return True
        return False

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        goal, self._goal = self._goal, None
        before, passage = self._passage, Passage((goal or {}).get("began") or random_states())
        self._passage = passage
        if self.persistent_workers and before is not None:
            passage.workers = dict(before.workers)
        if goal is None:
            return self._looking_ahead(self._anew(passage), passage)
        passage.first = _by_number(goal.get("first", {}))
        passage.rows = _by_number(goal["rows"]) if "rows" in goal else self._dealt_out(goal.get("row", 0))
        if goal["over"]:
            passage.pulled, passage.ahead, passage.workers = goal["pulled"], _END, _by_number(goal["workers"])
            self.take_over(goal)
            return iter(())
        return self._looking_ahead(self._from(goal, passage), passage)

    def _anew(self, passage: Passage) -> Iterator[Any]:
        """Return the batches of an epoch from its beginning."""
        heirs, self._heirs = self._heirs, None
        if heirs is None:
            return self._begin(passage)
        passage.workers = heirs
        # Workers that stay are seeded once, in an epoch that is over: by now that draws nothing.
        self.generator = torch.Generator()
        try:
            return self._begin(passage)
        finally:
            self.generator = None

    def _from(self, goal: dict[str, Any], passage: Passage) -> Iterator[Any]:
        """Return the batches of an epoch behind those that were taken when `goal` was noted; note the one ahead."""
        restore_random_states(passage.began)
        if self._drawn is not None:
            self._drawn.state = goal.get("order")
        to_read, ahead = goal["pulled"], goal["ahead"]
        held = ahead is not None
        if isinstance(self.batch_sampler, BatchedSampler):
            self.skip(to_read)
            self.batch_sampler.first_row = passage.first.get(0, 0)
            passage.pulled, to_read = to_read, 0
            passage.workers = _by_number(goal["workers"])
        elif restore_dataset(self.dataset, goal["dataset"]):
            passage.pulled, to_read = to_read - held, int(held)
        elif self._stream is not None:
            self._stream.first_rows = passage.first
        batches = self._begin(passage)
        for _ in range(to_read):
            self._pull(batches, passage)
        if held:
            passage.ahead, passage.part = Filled(ahead["batch"], ahead.get("extra", 0)), goal.get("part", 0)
        elif self._stream is not None and not passage.pulled:
            # A stream that draws where it begins has to do that from the random states that it began from.
            passage.ahead = self._pull(batches, passage)
        return batches

    def _begin(self, passage: Passage) -> Iterator[Any]:
        if isinstance(self.worker_init_fn, WorkerStart):
            self.worker_init_fn.states = passage.workers
        # Rows that are indexed are found again by their numbers, and those of workers by their number of batches.
        indexed = isinstance(self.batch_sampler, BatchedSampler)
        passage.keeps_state = not self.num_workers and not indexed and keeps_state(self.dataset)
        if self.num_workers and self._in_group:
            let_threads_rest()
        with starting_workers() if self.num_workers else nullcontext():
            batches: Iterator[Any] = super().__iter__()
        if self._stream is not None:
            self._stream.first_rows = {}  # which workers have by now
        if self.persistent_workers and batches is not self._iterating:
            # A trainer is part of a cycle. Workers that are collected with it have lost their queues by then, so that
            # each is waited for in vain, for seconds; let go of here, they are told to end.
            self._iterating = batches
            weakref.finalize(self, _let_go, batches)
        return batches

    def _looking_ahead(self, batches: Iterator[Any], passage: Passage) -> Iterator[Any]:
        stride = self._stride
        if passage.ahead is None:
            passage.ahead = self._pull(batches, passage)
        while passage.ahead is not _END:
            batch, part = _parted(passage.ahead), passage.part
            passage.ahead = self._pull(batches, passage)
            passage.rows[part] = passage.rows.get(part, 0) + stride
            self.extra = batch.extra
            yield batch.batch

    def _pull(self, batches: Iterator[Any], passage: Passage) -> Any:
        if passage.keeps_state:
            passage.dataset = self.dataset.state_dict()  # type: ignore[attr-defined] # since it keeps a state
        batch = next(batches, _END)
        while isinstance(batch, Labelled) and batch.batch is None:
            batch = next(batches, _END)
        if isinstance(batch, Labelled):
            passage.workers[batch.worker] = batch.states
            passage.part = 0 if self._stream is None else batch.worker
            batch = batch.batch
        if self.ends is not None:
            batch = self.ends.agreed(batch, _END)
        passage.pulled += batch is not _END
        return batch


def _parted(batch: Any) -> Filled:
    return batch if isinstance(batch, Filled) else Filled(batch, 0)


def _by_name(values: dict[int, Any]) -> dict[str, Any]:
    return {str(number): value for number, value in values.items()}


def _by_number(values: dict[str, Any]) -> dict[int, Any]:
    return {int(name): value for name, value in values.items()}


def _let_go(batches: Any) -> None:
    """Hold what a loader iterated over until the loader is gone, and no longer."""


# Workers.


@dataclass
class Labelled:
    """A batch that a worker made, with what it takes to go on in that worker's place."""

    batch: Any
    """The batch."""
    worker: int
    """The worker's number."""
    states: dict[str, Any]
    """Its random states afterwards."""

    def pin_memory(self) -> Labelled:
        """Pin the batch, as torch asks of kinds that it does not know."""
        return Labelled(map_tensors(torch.Tensor.pin_memory, self.batch), self.worker, self.states)


@dataclass
class Labelling:
    """A collator that, in a worker, labels what another one makes."""

    collator: Collator
    """The other one."""

    def __call__(self, features: list[Any]) -> Any:
        worker = get_worker_info()
        if worker is None:
            return self.collator(features)
        batch = self.collator(features) if features else None  # None for a blank one
        return Labelled(batch, worker.id, random_states())


@dataclass
class WorkerStart:
    """Seeds a worker when it starts, or has it go on where the one before it was."""

    workers: int
    """How many there are."""
    rank: int
    """The process that they load for."""
    seeds: bool = True
    """Whether they are seeded here; those that read a stream keep the seeds of torch, as in transformers."""
    states: dict[int, Any] = field(default_factory=dict)
    """The random states of those before, by number."""

    def __call__(self, worker: int) -> None:
        """Start the worker of this number."""
        outlive_signals(worker)
        if self.seeds:
            set_seed(self.workers * self.rank + torch.initial_seed() % 2**32)
        if worker in self.states:
            restore_random_states(self.states[worker])


# What a checkpoint can hold of a batch.


def is_storable(batch: Any) -> bool:
    """Say whether a batch is made of tensors, arrays, numbers, strings, and dicts, lists and tuples of such."""
    if isinstance(batch, Mapping):
        return all(isinstance(key, str) and is_storable(value) for key, value in batch.items())
    if type(batch) in (list, tuple):
        return all(map(is_storable, batch))
    if isinstance(batch, np.ndarray):
        return bool(batch.dtype != object)
    return batch is None or isinstance(batch, (torch.Tensor, bool, int, float, str))


def as_plain(batch: Any) -> Any:
    """Return a batch with plain dicts for mappings of other kinds, such as a tokenizer's."""
    if isinstance(batch, Mapping):
        return {key: as_plain(value) for key, value in batch.items()}
    return type(batch)(map(as_plain, batch)) if isinstance(batch, (list, tuple)) else batch
