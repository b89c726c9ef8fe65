"""Forking workers beside the threads of a process group, which up to Python 3.11 can leave a worker hanging for ever.

A forked process waits in vain for a lock of the interpreter that another thread held at that moment
(https://github.com/python/cpython/issues/112275). Threads that were not made by Python take it whenever they come to
an object of Python, as those of gloo do when they let go of the tensors that they have sent.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

PATIENCE = 0.1
"""Seconds to wait at most: a thread that always computes shall not hold up the workers."""

_THREADS = Path("/proc/self/task")


def let_threads_rest() -> None:
    """Wait until what the threads of the process group had to do is done. Call it just before workers are forked.

    It returns at once where Python is mended, and where the system does not say what threads do.
    """
    if sys.version_info >= (3, 12) or not _THREADS.is_dir():
        return
    until = time.monotonic() + PATIENCE
    while _others_run() and time.monotonic() < until:
        time.sleep(0.001)


def _others_run() -> bool:
    """Say whether a thread beside this one runs, or could. One that waits for this one's leave holds no such lock."""
    own = threading.get_native_id()
    return any(_state(int(name)) == "R" for name in os.listdir(_THREADS) if int(name) != own)


def _state(thread: int) -> str:
    """Return the letter that the system has for what a thread does; empty if it is gone."""
    try:
        text = (_THREADS / str(thread) / "stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]  # behind its name, which may have blanks and brackets
