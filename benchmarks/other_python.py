"""Functions of the benchmarks that run in the Python of another environment.

    PYTHON benchmarks/other_python.py

Each line of its input is a JSON object with a function of a benchmark and its arguments. The process calls the
function, and answers with one line: its result, or its error. The process stays alive between rounds, so that its
contenders alternate with those that run in the parent process. The environment needs only torch and these contenders.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class OtherPython:
    """The Python of another environment, as the parent process sees it."""

    def __init__(self, python: str, threads: int = 1) -> None:
        """Start the process. `threads` is the number of threads of torch in it.

        Raises:
            RuntimeError: if the process does not start, for example without torch.
        """
        self._python = python
        words = [python, __file__, str(threads)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=nothing, text=True)
        except OSError as error:
            raise RuntimeError(f"{python} does not start: {error}") from error
        self._read()

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of a benchmark in the other process. Its arguments and its result must fit into JSON.

        Raises:
            RuntimeError: if the function raises an error. The message has the traceback.
        """
        assert self._child.stdin is not None
        request = {
            "module": Path(inspect.getfile(function)).stem,
            "function": function.__name__,
            "arguments": arguments,
        }
        print(json.dumps(request), file=self._child.stdin, flush=True)
        result: T = self._read()
        return result

    def _read(self) -> Any:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"{self._python} ended with status {self._child.returncode}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self._child.communicate(timeout=60)


@contextlib.contextmanager
def own_output() -> Iterator[Any]:
    """Yield the real stdout of the process. In the `with` block, everything that libraries print goes to stderr."""
    output, sys.stdout = sys.stdout, sys.stderr
    try:
        yield output
    finally:
        sys.stdout = output


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Call the function of a request. Return its result or its traceback."""
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        return {"result": function(*request["arguments"])}
    except (Exception, SystemExit):
        return {"error": traceback.format_exc()}


def main() -> None:
    """Answer each line of the input."""
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    warnings.simplefilter("ignore")
    with own_output() as output:
        print(json.dumps({"result": None}), file=output, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=output, flush=True)


if __name__ == "__main__":
    main()
