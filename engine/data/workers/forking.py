"""Wait until all other threads are idle, before the workers of a data loader are forked, to avoid a deadlock.

Up to Python 3.11, a process that is forked from a process with several threads can deadlock: it inherits a lock of the
interpreter that another thread held at the fork (https://github.com/python/cpython/issues/112275). Threads that Python
did not create take this lock whenever they touch a Python object. The threads of a gloo process group do so when they
release tensors that they have sent.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

MAX_WAIT = 0.1
"""Longest wait in seconds. A thread that always computes must not delay the workers further."""

_THREADS = Path("/proc/self/task")


def wait_for_idle_threads() -> None:
    """Wait until all other threads of this process are idle, for at most `MAX_WAIT` seconds, just before a fork.

    The wait avoids a deadlock of Python 3.11 and earlier. On Python 3.12 or later, and on systems without `/proc`, the
    function returns at once.
    """
    if sys.version_info >= (3, 12) or not _THREADS.is_dir():
        return
    until = time.monotonic() + MAX_WAIT
    while _other_threads_run() and time.monotonic() < until:
        time.sleep(0.001)


def _other_threads_run() -> bool:
    """Return whether another thread of this process runs or is ready to run.

    Only such a thread can hold the lock of the interpreter: a thread that waits does not hold it.
    """
    own = threading.get_native_id()
    return any(_state(int(name)) == "R" for name in os.listdir(_THREADS) if int(name) != own)


def _state(thread: int) -> str:
    """Return the state of a thread, such as `R` (running) or `S` (sleeping); empty if the thread has ended.

    `thread` is the native id of the thread.
    """
    try:
        text = (_THREADS / str(thread) / "stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]  # the name before it may contain blanks and brackets
