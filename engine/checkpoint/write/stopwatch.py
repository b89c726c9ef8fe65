"""A stopwatch for tasks on a thread, such as writing a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Measures the time of each task of a thread. The thread runs one task at a time. Any thread may read the times."""

    def __init__(self) -> None:
        """Create a stopwatch without a measured task."""
        self.seconds = 0.0
        """The seconds that the last finished task took; 0 before the first task finishes."""
        self._slowest = 0.0
        self._began: float | None = None

    @contextmanager
    def task(self) -> Iterator[None]:
        """Measure the time of a task in a `with` block."""
        began = self._began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds = time.perf_counter() - began
            self._slowest, self._began = max(self._slowest, self.seconds), None

    @property
    def slowest(self) -> float:
        """The seconds that the slowest task took. The time of the running task so far counts too."""
        began = self._began
        return self._slowest if began is None else max(self._slowest, time.perf_counter() - began)
