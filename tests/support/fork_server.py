"""A Python process that has already imported torch and trainbus, and forks a process for each program to run.

An import of torch and trainbus takes seconds, and tests start many programs. A forked process has imported both, and
otherwise runs a program like `python PROGRAM`: as `__main__`, with its own variables, output and exit.

`Server` is the side of the tests. This file, run as a program, is the other side.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class Server:
    """Starts this file as a program, and sends requests to it. The program ends with this process.

    Args:
        modules: the modules to import before the first fork.
        variables: the environment of the imports.
    """

    def __init__(self, modules: Sequence[str], variables: dict[str, str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="fork-")
        self._address = os.path.join(self._folder, "socket")
        words = [sys.executable, __file__, self._address, *modules]
        said = Path(self._folder, "said")
        with said.open("wb") as file:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=file, stderr=file, env=variables, cwd=self._folder
            )
        while not os.path.exists(self._address):
            assert self._process.poll() is None, said.read_text(errors="replace")[-4000:]
            time.sleep(0.05)
        self._owner = os.getpid()
        atexit.register(self.close)

    def run(
        self, words: Sequence[str], variables: dict[str, str], folder: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end.

        Args:
            words: the path of the program, and its arguments.
            variables: its environment.
            folder: its working folder.
            timeout: the time limit in seconds, after which the program is killed.

        Raises:
            subprocess.TimeoutExpired: after the timeout.
        """
        with (
            tempfile.TemporaryFile("w+", errors="replace") as out,
            tempfile.TemporaryFile("w+", errors="replace") as err,
            socket.socket(socket.AF_UNIX) as connection,
            connection.makefile() as answers,
        ):
            connection.connect(self._address)
            request = {"words": [*words], "variables": variables, "folder": folder}
            data = json.dumps(request).encode()
            socket.send_fds(connection, [len(data).to_bytes(8, "big")], [out.fileno(), err.fileno()])
            connection.sendall(data)
            pid = int(answers.readline())
            if not select.select([connection], [], [], timeout)[0]:
                os.kill(pid, signal.SIGKILL)
                answers.readline()
                raise subprocess.TimeoutExpired([*words], timeout)
            code = int(answers.readline())
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess([*words], code, out.read(), err.read())

    def close(self) -> None:
        """End the server. A fork of this process does nothing."""
        if os.getpid() == self._owner:
            atexit.unregister(self.close)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)


# The server.


def wait_for_a_program(address: str) -> dict[str, Any]:
    """Fork at each request. Return the request, in the process that is to run the program."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen()
    os.rename(f"{address}.new", address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the forked processes end by themselves
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)  # the tests have ended
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 2)
    data = b""
    while len(data) < int.from_bytes(head, "big"):
        data += connection.recv(1 << 20)
    program = os.fork()
    if program:
        connection.sendall(f"{program}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        connection.sendall(f"{code}\n".encode())
        os._exit(0)
    connection.close()
    for descriptor, standard in zip((os.open(os.devnull, os.O_RDONLY), *descriptors), (0, 1, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    return dict(json.loads(data))


def become(request: dict[str, Any]) -> ModuleType:
    """Make this process what `python PROGRAM` is when it begins, and return its empty `__main__`."""
    os.environ.clear()
    os.environ.update(request["variables"])
    time.tzset()
    tempfile.tempdir = None
    os.chdir(request["folder"])
    program = request["words"][0]
    paths = [path for path in request["variables"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [str(Path(program).parent), *(path for path in paths if path not in sys.path)]
    sys.argv[:] = request["words"]
    main = ModuleType("__main__")
    main.__file__ = program
    sys.modules["__main__"] = main
    return main


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are those of `support`
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # garbage collection in a forked process would copy the memory of the imports
    wanted = wait_for_a_program(sys.argv[1])
    namespace = vars(become(wanted))
    source = Path(wanted["words"][0]).read_bytes()
    exec(compile(source, wanted["words"][0], "exec"), namespace)
