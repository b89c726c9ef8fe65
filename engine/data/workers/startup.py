"""Start of workers: their seeds, and their RNG states before and after each batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ...api.seeding import set_seed
from ...checkpoint.own_generators import OwnGenerators
from ...checkpoint.rng_state import QuickStates, restore_random_states
from ..batches import pinned
from ..collators.default import Collator
from .shared_values import shares_values
from .signals import ignore_stop_signals


@dataclass
class WorkerBatch:
    """A batch with the number and the RNG states of the worker that made it."""

    batch: Any
    """The batch; None for an empty batch of sample indices, with which a resumed loader skips the turn of a worker."""
    worker: int
    """Number of the worker, from 0."""
    states: dict[str, Any]
    """RNG states of the worker after it made the batch."""

    def __getstate__(self) -> dict[str, Any]:
        # A tensor would travel in shared memory of its own, which costs more than a copy of its 5 kB.
        return {**vars(self), "states": {**self.states, "torch": self.states["torch"].numpy()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        states = state["states"]
        vars(self).update({**state, "states": {**states, "torch": torch.from_numpy(states["torch"])}})

    def pin_memory(self) -> WorkerBatch:
        """Return a copy with the batch in pinned memory. torch calls this method."""
        return WorkerBatch(pinned(self.batch), self.worker, self.states)


@dataclass
class WorkerCollator:
    """A collator that returns a `WorkerBatch` in a worker, and a plain batch elsewhere."""

    collator: Collator
    """Makes the batch."""
    _own: OwnGenerators | None = field(default=None, init=False, repr=False, compare=False)
    """The generators of this worker's dataset and collator; None before the first batch of the worker."""
    _rng: QuickStates | None = field(default=None, init=False, repr=False, compare=False)
    """Reads the RNG states of this worker; None before the first batch of the worker."""

    def __call__(self, features: list[Any]) -> Any:
        worker = get_worker_info()
        if worker is None:
            return self.collator(features)
        batch = self.collator(features) if features else None
        own = self._own or OwnGenerators({"dataset": worker.dataset, "collator": self.collator})
        if features:
            self._own = own  # the first batch may have created generators
        if self._rng is None:
            self._rng = QuickStates()  # in the worker, whose generators it reads
        return WorkerBatch(batch, worker.id, {**QuickStates.named(self._rng.read()), "own": own.read()})


@dataclass
class WorkerInit:
    """The `worker_init_fn` of training loaders and persistent workers: sets seed, dataset epoch and RNG states."""

    workers: int
    """Number of workers of the loader."""
    rank: int
    """Rank that the workers load for."""
    seeds: bool = True
    """Whether to seed workers here. Workers of a stream or an evaluation keep torch's seeds, as in transformers."""
    collator: Collator | None = None
    """The collator. The states of its own generators are restored too."""
    states: dict[int, Any] = field(default_factory=dict)
    """RNG states to restore, by worker number. The loader sets this field before workers start."""
    epoch: int | None = None
    """The epoch that the worker passes to `set_epoch` of its dataset. If this field is None, or if the dataset shares
    values with its workers, the worker does not call `set_epoch`. The loader sets this field before persistent workers
    start."""

    def __call__(self, worker: int) -> None:
        """Initialize this worker process; `worker` is its number."""
        ignore_stop_signals(worker)
        if self.seeds:
            set_seed(self.workers * self.rank + torch.initial_seed() % 2**32)
        info = get_worker_info()
        dataset: Any = None if info is None else info.dataset
        if self.epoch is not None and hasattr(dataset, "set_epoch") and not shares_values(dataset):
            dataset.set_epoch(self.epoch)
        if worker in self.states:
            restore_random_states(self.states[worker])
            owners = {"dataset": dataset, "collator": self.collator}
            OwnGenerators(owners).restore(self.states[worker].get("own", {}))
