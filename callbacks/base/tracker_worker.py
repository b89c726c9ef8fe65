"""The thread on which a tracker calls its service, so that a slow or failing service never delays a step."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

LIMIT = 100_000
"""The largest number of waiting calls. Further calls are dropped and counted, so that memory stays bounded."""


class TrackerWorker:
    """Makes calls one after the other on a daemon thread.

    A call that fails is counted in `missed` and logged once. It stops neither the training nor later calls.
    """

    def __init__(self, name: str, limit: int = LIMIT) -> None:
        """Start the thread.

        Args:
            name: the name of the tracker, for messages.
            limit: the largest number of waiting calls.
        """
        self.name = name
        self.missed = 0
        """The number of calls that failed or were dropped."""
        self.reason = ""
        """Why the first of them was missed."""
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(limit)
        self._thread = threading.Thread(target=self._work, name=f"{name}-worker", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Make a call later. It returns at once."""
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._miss("the queue is full, because the service is too slow")

    def wait_for(self, call: Callable[[], None], timeout: float) -> bool:
        """Make a call after all earlier ones, and wait for it. Return False if it is not done in time.

        A call that takes longer is not cancelled: it goes on while the caller continues.
        """
        done = threading.Event()

        def report() -> None:
            try:
                call()
            finally:
                done.set()

        self.submit(report)
        return done.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Make the waiting calls, then end the thread. Return False if that takes longer than the timeout."""
        deadline = time.monotonic() + timeout
        try:
            self._calls.put(None, timeout=timeout)
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """The number of calls that are not made yet."""
        return self._calls.qsize()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                self._miss(f"{type(error).__name__}: {error}", error)

    def _miss(self, reason: str, error: Any = None) -> None:
        self.missed += 1
        if not self.reason:
            self.reason = reason
            logger.warning("%s failed, and the training continues: %s", self.name, reason, exc_info=error)
