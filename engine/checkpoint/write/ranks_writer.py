"""A writer with one thread on each rank, for checkpoints of several ranks.

A task writes one checkpoint. One rank may finish its task earlier than another rank. The ranks agree on a step, the due
step. The training continues, and all ranks treat the task as finished from the due step on.
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

    One rank may finish its task earlier than another rank. But all ranks must announce `on_commit`, or raise the error
    of the task, at the same step. So when the tasks of all ranks have ended, the threads exchange the last step that
    each rank completed. The *due step* is the highest of these steps plus 1: for the steps 10 and 12, the due step is
    13. Before the due step, `finished_at` returns False. From the due step on, `finished_at` returns True. While the
    threads exchange the steps, `finished_at` waits.
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
        """Agree with the other ranks on the due step: the first step for which `finished_at` returns True.

        If a collective of the threads fails, the ranks cannot agree. This rank sets its due step to 0, so `finished_at`
        returns True for every step. The training then calls `wait`, which raises the error of the task.
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
