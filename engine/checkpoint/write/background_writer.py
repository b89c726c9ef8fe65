"""A thread that writes one checkpoint at a time while training continues."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

from ..protocols import SavingRanks
from .stopwatch import Stopwatch


class BackgroundWriter:
    """A thread that runs one task at a time. If a task fails, the next `submit`, `wait` or `close` raises its error."""

    def __init__(self) -> None:
        """Create an idle writer. The first task starts the thread."""
        self._pool: ThreadPoolExecutor | None = None
        self._task: Future[None] | None = None
        self._process = os.getpid()
        self._stopwatch = Stopwatch()

    def ranks(self, ranks: Any, timeout: int) -> SavingRanks:
        """Return the ranks that a task, such as writing a checkpoint, uses for its collectives.

        All ranks must call this method. `BackgroundWriter` returns `ranks`. `RanksWriter` returns a `ThreadGroup`,
        because the collectives of its thread need a second process group.

        Args:
            ranks: the ranks of the run.
            timeout: the time limit of a collective, in seconds.
        """
        group: SavingRanks = ranks
        return group

    def submit(self, work: Callable[[], None], step: int = 0) -> None:
        """Wait for the running task, then start the task `work`. If the running task fails, raise its error instead.

        Args:
            work: the task.
            step: the number of completed steps of the training. Only `RanksWriter` uses it.
        """
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._task = self._pool.submit(self._timed, work)

    def __reduce__(self) -> tuple[type[BackgroundWriter], tuple[()]]:
        """Make `pickle` and `copy` create a new writer, without a thread and without a task."""
        return type(self), ()

    def _timed(self, work: Callable[[], None]) -> None:
        with self._stopwatch.task():
            work()

    @property
    def seconds(self) -> float:
        """The seconds that the last finished task took; 0 before the first task finishes."""
        return self._stopwatch.seconds

    @property
    def slowest(self) -> float:
        """The seconds that the slowest task took. The time of the running task so far counts too."""
        return self._stopwatch.slowest

    @property
    def busy(self) -> bool:
        """Whether the task of the last `submit` still runs. False before the first `submit`."""
        return self._task is not None and not self._task.done()

    @property
    def done(self) -> bool:
        """Whether the task of the last `submit` has finished. False if there is no task, such as after `wait`."""
        return self._task is not None and self._task.done()

    def finished_at(self, step: int) -> bool:
        """Return whether the task of the last `submit` has finished on all ranks.

        Call this method after each step. All ranks get the same answer for the same step. Without a task, such as
        after `wait`, the answer is False.

        Args:
            step: the number of completed steps of the training.
        """
        return self.done

    def _leave_to_parent(self) -> None:
        """In a forked process, drop the references to the thread and the task of the parent process."""
        if self._process != os.getpid():
            self._process, self._pool, self._task = os.getpid(), None, None

    def wait(self) -> None:
        """Wait for the running task, if there is one, and raise its error."""
        self._leave_to_parent()
        task, self._task = self._task, None
        if task is not None:
            task.result()

    def finish(self) -> bool:
        """Wait for the task of the last `submit` without raising its error. Return whether the task succeeded.

        Return False if there is no task, such as after `wait`.
        """
        self._leave_to_parent()
        if self._task is None:
            return False
        wait_for([self._task])
        return self._task.exception() is None

    def close(self) -> None:
        """Wait for the running task, raise its error if it failed, and end the thread."""
        self._leave_to_parent()
        pool, self._pool = self._pool, None
        try:
            self.wait()
        finally:
            if pool is not None:
                pool.shutdown()


Writer = BackgroundWriter
"""The former name of `BackgroundWriter`."""
