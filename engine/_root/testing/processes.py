"""Processes of a test: run a function in forked processes, with the environment of a launcher."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

GRACE = 0.5
"""The seconds after the time limit in which processes that answered in time can end."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    value: Any = None
    """The return value of the function."""
    error: str = ""
    """The class and the text of the exception that the function raised; empty if it raised none."""
    trace: str = ""
    """The traceback of the exception."""
    exit_code: int | None = None
    """The exit code of the process. After a signal: the negative number of the signal. None if the process was
    killed because of the timeout."""


def in_processes(function: Callable[[int], Any], count: int = 2, timeout: float = 60.0) -> list[Ended]:
    """Call a function in forked processes that torch.distributed can connect.

    If `count` is above 1, each process has the environment variables of a launcher, such as `RANK` and `MASTER_ADDR`.

    A forked process starts in milliseconds, and the function need not be importable. The operating system must have
    `fork`, and this process must not have used CUDA.

    Args:
        function: takes the rank, and returns a value that can be pickled. Ranks count from 0.
        count: the number of processes. With 1, the process is not distributed.
        timeout: the seconds after which all processes that still run are killed.

    Returns:
        An `Ended` for each process, in order of rank: the return value or the error, and the exit code.
    """
    context = multiprocessing.get_context("fork")
    port = _free_port()
    started = []
    for rank in range(count):
        reader, writer = context.Pipe(duplex=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the children use no thread of this process
            process = context.Process(target=_child, args=(function, rank, count, port, writer), daemon=True)
            process.start()
        writer.close()
        started.append((process, reader))
    deadline = time.monotonic() + timeout  # of all processes together
    ended = [_received(process, reader, deadline) for process, reader in started]
    for process, reader in started:
        if process.is_alive():
            process.kill()
            process.join()
        reader.close()
    return ended


def _received(process: Any, reader: Any, deadline: float) -> Ended:
    values: dict[str, Any] = {}
    in_time = False
    try:
        if in_time := reader.poll(max(0.0, deadline - time.monotonic())):
            values = reader.recv()
    except (EOFError, OSError):
        pass  # it was killed before it could answer
    if in_time:
        process.join(max(0.0, deadline + GRACE - time.monotonic()))
    return Ended(exit_code=process.exitcode, **values)


def _child(function: Callable[[int], Any], rank: int, count: int, port: int, writer: Any) -> None:
    torch.set_num_threads(1)  # the threads of the parent do not exist here
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    if count > 1:
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in world.items()}, MASTER_ADDR="127.0.0.1")
    try:
        answer = {"value": function(rank)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    writer.send(answer)
    writer.close()


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port
