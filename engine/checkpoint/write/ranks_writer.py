"""A writer with one thread on each rank, for checkpoints of several ranks.

A task writes one checkpoint. The ranks agree on the step after which the task counts as finished on all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..protocols import SavingRanks
from .background_writer import BackgroundWriter


class RanksWriter(BackgroundWriter):
    """Runs one task at a time on a thread of each rank. All ranks submit their tasks in the same order.

    The threads have their own process group. The training never uses this group.

    The ranks end their writes at different times, but all ranks must raise an error or announce an event at the same
    step. So the threads agree on a step: each thread reads the last step that its rank has completed, and all threads
    take the highest of these steps plus 1. During this exchange, a rank that completes a step waits. So no rank passes
    the step that the threads agree on.
    """

    def __init__(self) -> None:
        """Create an idle writer."""
        super().__init__()
        self._group: Any = None
        self._changed = threading.Condition()
        self._step = 0
        self._due: int | None = None
        self._exchanging = False

    def ranks(self, ranks: Any, timeout: int) -> SavingRanks:
        if self._group is None:
            self._group = ranks.thread_group(timeout)
        group: SavingRanks = self._group
        return group

    def submit(self, work: Callable[[], None], step: int = 0) -> None:
        self.wait()
        self._step, self._due = step, None
        super().submit(work, step)

    def finished_at(self, step: int) -> bool:
        with self._changed:
            self._step = step
            self._changed.wait_for(lambda: not self._exchanging)
            return self._task is not None and self._due is not None and step >= self._due

    def _timed(self, work: Callable[[], None]) -> None:
        try:
            super()._timed(work)
        finally:
            self._agree()

    def _agree(self) -> None:
        """Agree with the threads of the other ranks on the step after which the task counts as finished.

        If the connection to a rank is lost, the threads do not agree. The task then counts as finished at once, and its
        error names the cause.
        """
        due = 0
        try:
            if not self._group.lost:
                self._group.gather_objects(None)  # so that the training does not wait for a slower thread below
                with self._changed:
                    self._exchanging, own = True, self._step
                due = 1 + max(self._group.gather_objects(own))
        finally:
            with self._changed:
                self._exchanging, self._due = False, due
                self._changed.notify_all()

    def close(self) -> None:
        try:
            super().close()
        finally:
            group, self._group = self._group, None
            if group is not None:
                group.close()
