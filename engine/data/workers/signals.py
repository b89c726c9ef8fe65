"""Signals in the workers of a loader: workers ignore stop signals, so that the run can finish its step and save.

A terminal sends SIGINT (Ctrl-C) to all processes of a program, and many schedulers do the same with SIGTERM. If such
a signal ends a worker, the training process gets an error and cannot finish its step or save.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def block_sigterm() -> Iterator[None]:
    """Block SIGTERM in this thread during a `with` block, in which workers start. On Windows, do nothing.

    Each worker that starts inside the `with` block also blocks SIGTERM, in all its threads. So a SIGTERM does not end
    the worker.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals(worker: int) -> None:
    """Ignore SIGINT, SIGUSR1, SIGHUP and SIGTERM in this worker process, except a SIGTERM from its parent process.

    torch's DataLoader calls this function in each worker that starts: as `worker_init_fn`, or through `WorkerInit`.

    Args:
        worker: number of the worker.
    """
    for name in ("SIGINT", "SIGUSR1", "SIGHUP"):
        if hasattr(signal, name):  # Windows has fewer signals
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        # A loader ends a hanging worker with SIGTERM. Only a thread that waits for the signal learns who sent it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_when_told, args=(os.getppid(),), daemon=True, name="signals").start()


def _exit_when_told(parent: int) -> None:
    """Ignore each SIGTERM until the process with the id `parent` sends one, then exit."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
