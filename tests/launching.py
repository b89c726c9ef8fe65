"""Programs that tests start: alone, or as two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def run(*command: str | Path, timeout: float, code: int = 0, **settings: str) -> str:
    """Run a program of Python, and return what it wrote to stderr.

    Args:
        command: the program and its arguments, after options of Python if there are any, such as `*TORCHRUN`.
        timeout: in seconds; it is killed then, and the test fails.
        code: what it is to end with; the test fails otherwise, with the end of what it wrote.
        settings: variables of its environment.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **settings}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done.stderr


def run_on_two(*command: str | Path, timeout: float, **settings: str) -> None:
    """Run a program as two processes in the environment that torchrun would give them, three seconds sooner."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ThreadPoolExecutor() as pool:
        both = [
            pool.submit(run, *command, timeout=timeout, RANK=rank, LOCAL_RANK=rank, **world, **settings)
            for rank in "01"
        ]
    for process in both:
        process.result()
