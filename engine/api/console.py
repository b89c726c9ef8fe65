"""Console output that does not end the training if stdout or stderr is closed or its disk is full."""

from __future__ import annotations

import errno
import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from ...events.imported import imported

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a write that finds no space: a full disk, a used-up quota or a file of maximum size."""


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is an open terminal.

    Args:
        stream: the stream. It may be None, as `sys.stderr` is in a program that starts without stderr.
    """
    return stream is not None and not getattr(stream, "closed", False) and bool(stream.isatty())


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook that shows HTML."""
    ipython = imported("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def is_interactive() -> bool:
    """Return whether the user types the program line by line or cell by cell: in a notebook, IPython or Python."""
    ipython = imported("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)


def say(line: str) -> None:
    """Print a line to stdout. Do nothing if stdout is closed."""
    with open_console():
        print(line, flush=True)


@contextmanager
def open_console() -> Iterator[None]:
    """Continue the program if the `with` block fails because stdout or stderr is closed or its disk is full.

    A stream is closed, for example, after its reader (such as `head`) or the terminal ended. The function replaces a
    closed stream with the null device, so that later prints do not fail. If a disk is full, only the output of this
    block is lost, because the disk may have space again later.

    Raises:
        OSError, ValueError: the error of the block, if both streams are open and no disk is full.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        broken = [name for name in ("stdout", "stderr") if _is_broken(name)]
        if not broken and getattr(error, "errno", None) in FULL:
            _tell_full(str(error))
            return
        if not broken:
            raise
        for name in broken:
            _discard(name)
        logger.warning("%s is closed. Training continues without its output.", " and ".join(broken))


@cache
def _tell_full(problem: str) -> None:
    logger.warning("stdout or stderr cannot be written: %s. Training continues, and the output is lost.", problem)


def _is_broken(name: str) -> bool:
    stream = getattr(sys, name)
    try:
        if stream is None:
            return False
        if _has_descriptor(name) and hasattr(select, "poll"):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):  # an error or a hang-up: no reader is left
                return True
        stream.flush()
    except (OSError, ValueError):
        return True
    return False


def _has_descriptor(name: str) -> bool:
    try:
        return bool(getattr(sys, name).fileno() >= 0)
    except (OSError, ValueError, AttributeError):
        return False


def _discard(name: str) -> None:
    """Discard all later output to `name`: `stdout` or `stderr`."""
    if _has_descriptor(name):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, getattr(sys, name).fileno())
        os.close(null)
    else:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 # it stays open
