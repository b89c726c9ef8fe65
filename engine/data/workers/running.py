"""The persistent workers of one loader: their processes, the epoch in which they started, and states they inherit."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from ..epoch_progress import by_number


@dataclass
class RunningWorkers:
    """The persistent workers of a loader. They keep their copy of the dataset from epoch to epoch.

    So `set_epoch` of a dataset does not reach workers that are running: they load the samples of the epoch in which
    they started. A resumed run starts its workers with this epoch, and then loads the same samples.
    """

    epoch: int | None = None
    """The epoch in which the workers started, in this session or in the first session of the run. None before that."""
    states: dict[int, Any] | None = None
    """RNG states for the workers that start with the next iteration, by worker number; None for new seeds."""
    _iterator: Any = None
    """The iterator of torch whose workers are running."""

    def resume_state(self) -> dict[str, Any]:
        """Return the state that a resumed run inherits, without the RNG states."""
        return {} if self.epoch is None else {"workers_epoch": self.epoch}

    def inherit(self, state: dict[str, Any]) -> None:
        """Take the epoch and the RNG states of the workers of an earlier session, if `state` has them.

        Args:
            state: the result of `Loader.resume_state`, or a part of it.
        """
        self.inherit_epoch(state)
        if "workers" in state:
            self.states = by_number(state["workers"])

    def inherit_epoch(self, state: dict[str, Any]) -> None:
        """Take the epoch in which the workers of an earlier session started, if `state` has it."""
        self.epoch = state.get("workers_epoch", self.epoch)

    def take_states(self) -> dict[int, Any] | None:
        """Return `states`, once."""
        states, self.states = self.states, None
        return states

    def note_started(self, iterator: Any, epoch: int, loader: Any) -> None:
        """Record the iterator of torch that uses the workers in this epoch.

        Args:
            iterator: the iterator of torch. It is the same object in each epoch.
            epoch: the epoch that begins.
            loader: the loader of the iterator.
        """
        if self.epoch is None:
            self.epoch = epoch
        if iterator is not self._iterator:
            # A trainer is part of a reference cycle. If the garbage collector frees the iterator with this cycle, the
            # workers have lost their queues, and the process waits seconds for each worker. Releasing the iterator
            # when the loader is freed tells the workers to exit.
            self._iterator = iterator
            weakref.finalize(loader, id, iterator)  # keeps `iterator` alive
