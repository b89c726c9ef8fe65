"""The persistent workers of one loader, with the epoch of their samples and their RNG states."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from ..epoch_progress import by_number


@dataclass
class RunningWorkers:
    """The persistent workers of a loader. Each worker has a copy of the dataset, and uses this copy in all epochs.

    `set_epoch` does not change the copies. So workers always load the samples of the epoch in which they started, such
    as epoch 0. After a resume in epoch 3, the new workers must load the same samples: they start with epoch 0 too.
    """

    epoch: int | None = None
    """The epoch in which the workers of the run first started, in this session or in an earlier session. None before
    they start."""
    states: dict[int, Any] | None = None
    """RNG states with which the workers start in the next iteration, by worker number; None to draw new seeds."""
    _iterator: Any = None
    """The iterator of torch whose workers are running."""

    def resume_state(self) -> dict[str, Any]:
        """Return `{"workers_epoch": self.epoch}` for `Loader.resume_state`; `{}` if no workers have started."""
        return {} if self.epoch is None else {"workers_epoch": self.epoch}

    def inherit(self, state: dict[str, Any]) -> None:
        """Set `epoch` and `states` to the values of the workers of an earlier session, if `state` has these values.

        Args:
            state: the result of `Loader.resume_state`. The method reads only the entries `workers_epoch` and `workers`.
        """
        self.inherit_epoch(state)
        if "workers" in state:
            self.states = by_number(state["workers"])

    def inherit_epoch(self, state: dict[str, Any]) -> None:
        """Set the attribute `epoch` to `state["workers_epoch"]`, if `state` has this entry.

        `state` is a result of `Loader.resume_state`.
        """
        self.epoch = state.get("workers_epoch", self.epoch)

    def take_states(self) -> dict[int, Any] | None:
        """Return the attribute `states`, and set it to None, so that only one iteration of the loader uses it."""
        states, self.states = self.states, None
        return states

    def note_started(self, iterator: Any, epoch: int, loader: Any) -> None:
        """Store the iterator of torch that runs the workers. If the attribute `epoch` is None, store the epoch too.

        Args:
            iterator: the iterator of torch. It is the same object in each epoch.
            epoch: the epoch that begins, counted from 0.
            loader: the loader of the iterator. When the loader is freed, the iterator is freed too, and the workers
                end.
        """
        if self.epoch is None:
            self.epoch = epoch
        if iterator is not self._iterator:
            # A trainer is part of a reference cycle. If the garbage collector frees the iterator with this cycle, the
            # workers have lost their queues, and the process waits seconds for each worker. Releasing the iterator
            # when the loader is freed tells the workers to exit.
            self._iterator = iterator
            weakref.finalize(loader, id, iterator)  # keeps `iterator` alive
