"""Writing on a thread: one checkpoint at a time, while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Writer:
    """Does one piece of work at a time on a thread of its own; what fails there is raised where it is waited for."""

    def __init__(self) -> None:
        """Begin with nothing to do, and no thread."""
        self._pool: ThreadPoolExecutor | None = None
        self._work: Future[None] | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Have work done, after that under way; its error, if it fails, is raised here."""
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._work = self._pool.submit(work)

    @property
    def done(self) -> bool:
        """Whether work was submitted, is finished, and was not waited for."""
        return self._work is not None and self._work.done()

    def wait(self) -> None:
        """Wait for the work under way, if there is any, and raise the error it met."""
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def close(self) -> None:
        """Wait, and let the thread go."""
        pool, self._pool = self._pool, None
        try:
            self.wait()
        finally:
            if pool is not None:
                pool.shutdown()
