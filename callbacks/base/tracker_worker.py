"""The thread on which a tracker calls its service, so that a slow or failing service never delays a step."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Call = Callable[[], None]

LIMIT = 100_000
"""The largest number of waiting calls. The worker drops and counts further calls, so that memory stays bounded."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""The shortest and the longest pause between attempts to open the run, in seconds. The pause doubles with each
attempt."""
GATHER = 0.1
"""Seconds that the thread sleeps after a group of calls, so that many short steps share one wake-up. Each wake-up
delays the training, because the thread and the training need the same interpreter lock."""
HOPELESS = 3
"""At the end of the run, the worker drops all waiting rows after this number of consecutive failed rows."""


class TrackerWorker:
    """A daemon thread that opens the run of a tracker, and then makes the submitted calls one after the other.

    If the run does not open, the calls wait, and the worker tries again to open the run.

    If the call that writes a row fails, the row waits. Before the next row, the worker writes the waiting row again:

    - If the service refuses the waiting row and accepts the next row, the worker drops the waiting row. `missed` counts
      the dropped row.
    - If the service refuses both rows, both rows wait.

    Only the first failure is logged.
    """

    def __init__(self, name: str, opens: Call, limit: int = LIMIT) -> None:
        """Start the thread.

        Args:
            name: the name of the tracker, for messages.
            opens: the function that opens the run. If the function raises an error, the worker calls it again later.
            limit: the largest number of waiting calls. The worker drops further calls. The attribute `missed` counts
                the dropped calls.
        """
        self.name = name
        self.missed = 0
        """The number of calls that were dropped, or that failed in their last attempt."""
        self.reason = ""
        """The reason of the first failure; empty if there was none."""
        self._opens, self._limit = opens, limit
        self._calls: queue.SimpleQueue[tuple[Call, bool] | None] = queue.SimpleQueue()
        self._unsent: deque[Call] = deque()
        self._done = 0
        self._tried, self._closing = threading.Event(), threading.Event()
        self._hurry = threading.Event()
        self._last: Call | None = None
        self._thread = threading.Thread(target=self._work, name=f"{name}-worker", daemon=True)
        self._thread.start()

    def wait_until_tried(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the first attempt to open the run. Return whether the attempt ended."""
        return self._tried.wait(timeout)

    def submit(self, call: Call, again: bool = False) -> None:
        """Put a call into the queue of the worker, and return at once.

        Args:
            call: the function to call.
            again: whether to repeat the call after a failure. Pass True for rows, because rows must not be lost.
        """
        if self._calls.qsize() < self._limit:
            self._calls.put((call, again))
        else:
            self._miss("the queue is full, because the service is too slow")

    def drain(self, timeout: float, longest: float = float("inf")) -> bool:
        """Wait until the worker has made all calls in its queue. Return False if a time limit ends the wait.

        Args:
            timeout: stop waiting if the worker makes no call in this number of seconds.
            longest: stop waiting after this number of seconds, even if the worker still makes calls.
        """
        reached = threading.Event()
        self.submit(reached.set)
        self._hurry.set()
        done, since = self._done, time.monotonic()
        end = since + longest
        try:
            while not reached.wait(min(0.05, timeout, longest)):
                if time.monotonic() >= end:
                    return False
                if self._done != done:
                    done, since = self._done, time.monotonic()
                elif time.monotonic() - since >= timeout:
                    return False
            return True
        finally:
            if not self._closing.is_set():
                self._hurry.clear()

    def close(self, timeout: float, last: Call | None = None) -> bool:
        """Make the waiting calls, and then the call `last` if it is not None. Then end the thread.

        Return True if the thread ended. If the calls take longer than `timeout` seconds, return False. In this case the
        thread continues the calls in the background.
        """
        self._last = last
        self._closing.set()
        self._hurry.set()
        self._calls.put(None)  # also if `limit` calls wait, so that the thread ends later
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the thread of the worker. If True, the caller must not wait for the worker."""
        return threading.current_thread() is self._thread

    @property
    def waiting(self) -> int:
        """The number of calls that are not made yet."""
        return self._calls.qsize() + len(self._unsent)

    def _work(self) -> None:
        if self._open():
            while (item := self._calls.get()) is not None:
                call, again = item
                if again:
                    self._write(call)
                elif not self._make(call):
                    self.missed += 1
                self._done += 1
                if self._calls.empty():
                    self._hurry.wait(GATHER)
            self._write_remaining()
        else:
            while self._calls.get() is not None:
                self.missed += 1
        if self._last is not None and not self._make(self._last):
            self.missed += 1

    def _open(self) -> bool:
        """Open the run. After a failure, wait and try again. Return whether the run is open.

        After a call of `close`, the method makes only one more attempt.
        """
        pause = FIRST_PAUSE
        while True:
            closing = self._closing.is_set()
            opened = self._make(self._opens)
            self._tried.set()
            if opened or closing:
                self._opens = _nothing  # otherwise the worker would keep the tracker alive
                if opened and self.reason:
                    logger.warning("%s works now. The rows that waited are written.", self.name)
                return opened
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _write(self, call: Call) -> None:
        """Write the waiting rows, then the row of `call`, in order.

        If a row fails, the method tries another row to see whether the service works: the next row, and if that row
        fails too, the row of `call`.

        - If the service accepts another row, the method tries the failed row once more. If the row fails again, the
          method drops it. The method then continues with the other rows.
        - If the service accepts no row, all rows wait for the next call of this method. If more than `limit` rows wait,
          the method drops the row of `call`.
        """
        rows = self._unsent
        rows.append(call)
        while rows:
            if self._make(rows[0]):
                rows.popleft()
            elif any(self._makes(index) for index in sorted({1, len(rows) - 1}) if 0 < index < len(rows)):
                self.missed += not self._make(rows.popleft())  # the service works, so it may refuse this row
            else:
                break
        if len(rows) > self._limit:
            rows.pop()
            self.missed += 1

    def _makes(self, index: int) -> bool:
        """Write one of the waiting rows. Return whether the write succeeded.

        Args:
            index: the index of the row among the waiting rows. 0 is the oldest row.
        """
        made = self._make(self._unsent[index])
        if made:
            del self._unsent[index]
        return made

    def _write_remaining(self) -> None:
        failed = 0
        while self._unsent and failed < HOPELESS:
            failed = 0 if self._make(self._unsent.popleft()) else failed + 1
            self.missed += failed > 0
        self.missed += len(self._unsent)
        self._unsent.clear()

    def _make(self, call: Call) -> bool:
        try:
            call()
        except Exception as error:
            self._note(f"{type(error).__name__}: {error}", error)
            return False
        return True

    def _miss(self, reason: str) -> None:
        self.missed += 1
        self._note(reason)

    def _note(self, reason: str, error: Any = None) -> None:
        if not self.reason:
            self.reason = reason
            logger.warning(
                "%s failed, and the training continues: %s. Rows wait in memory and are sent again later.",
                *(self.name, reason),
                exc_info=error,
            )


def _nothing() -> None:
    """Do nothing. This function replaces the function that opens the run, after the run is open."""
