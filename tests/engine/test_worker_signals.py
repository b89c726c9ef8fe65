"""Workers of a loader ignore stop signals, except a SIGTERM of the process that they load for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from kill_program import forked

from trainbus.engine.data.workers.signals import block_sigterm, ignore_stop_signals

pytestmark = pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="the system does not say who sends a signal")


@contextmanager
def waiting() -> Iterator[int]:
    """Fork a process that does nothing for a minute, as a worker that waits for its next batch."""
    hears, says = os.pipe()

    def wait() -> None:
        ignore_stop_signals(0)
        os.write(says, b".")
        time.sleep(60)

    with block_sigterm():
        child = forked(wait)
    os.read(hears, 1)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.fixture
def worker() -> Iterator[int]:
    with waiting() as child:
        yield child


def ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG)[0] != 0


def send_from_another(child: int, number: int) -> None:
    """Send a signal from a process that is not the worker's parent."""
    other = forked(lambda: os.kill(child, number))
    assert os.waitpid(other, 0)[1] == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_worker_ignores_stop_signals_of_other_processes(name: str, worker: int):
    for _ in range(3):
        send_from_another(worker, getattr(signal, name))
        time.sleep(0.02)
    assert not ended(worker)


def test_worker_exits_on_sigterm_of_its_parent(worker: int):
    send_from_another(worker, signal.SIGTERM)
    os.kill(worker, signal.SIGTERM)
    until = time.monotonic() + 120
    while not (status := os.waitpid(worker, os.WNOHANG))[0]:
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.005)
    assert os.waitstatus_to_exitcode(status[1]) == 0


def test_threads_of_other_packages_in_a_worker_ignore_sigterm_too():
    """One that is not would be who the signal is delivered to, and end the worker."""
    wanted = True

    def start_a_thread() -> None:
        if wanted:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

    os.register_at_fork(after_in_child=start_a_thread)
    with waiting() as child:
        wanted = False
        test_worker_ignores_stop_signals_of_other_processes("SIGTERM", child)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
