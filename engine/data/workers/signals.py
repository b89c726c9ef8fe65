"""Signals in the workers of a loader: a stop is the run's own affair, which still needs its workers to end in order.

A terminal sends Ctrl-C, and many a scheduler SIGTERM, to all processes of a program. A worker that ends by it is an
error in the process that it loads for, which then could neither finish its step nor save.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def starting_workers() -> Iterator[None]:
    """Enclose the start of workers, which begin deaf to SIGTERM: so are then all threads that come up in them.

    Some packages, as OpenTelemetry, which wandb brings along, start threads of theirs again in each forked process.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_signals(worker: int) -> None:
    """Have this process, a worker, go on when it is told to stop by anybody but the process that it loads for.

    Args:
        worker: its number.
    """
    for name in ("SIGINT", "SIGUSR1"):
        if hasattr(signal, name):  # Windows has fewer of them
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        # By SIGTERM a loader ends a worker that hangs. Only a thread that waits for it learns who sent it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_for, args=(os.getppid(),), daemon=True, name="signals").start()


def _end_for(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
