"""Programs that tests start, on one process or on two ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
"""The folder that a program needs on its path to import `support`."""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def environment(**settings: str) -> dict[str, str]:
    """Return the environment of a program that can import `support`. Settings override variables."""
    made = {**os.environ, **settings}
    paths = [str(TESTS), made.get("PYTHONPATH", "")]
    return {**made, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(*command: str | Path, timeout: float, code: int = 0, **settings: str) -> str:
    """Run a Python program with one thread and return its stderr.

    Args:
        command: the program and its arguments. Options of Python, such as `*TORCHRUN`, come first.
        timeout: in seconds. The program is then killed and the test fails.
        code: the expected exit code. With another one the test fails and shows the end of the output.
        settings: variables of the environment.
    """
    variables = environment(**{"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **settings})
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done.stderr


def run_on_two(*command: str | Path, timeout: float, **settings: str) -> None:
    """Run a program on two ranks, in the environment of torchrun. It starts three seconds sooner than torchrun."""
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
