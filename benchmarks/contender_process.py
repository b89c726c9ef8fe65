"""A contender that runs in the Python of another environment. This environment needs only torch and the contender.

    PYTHON benchmarks/contender_process.py CONTENDER

Each line of its input is a JSON object with the task, the steps and the quantiles. The process trains, and answers with
one line: the quantiles of the time of a step. It stays alive between rounds, so that it alternates with the contenders
that run in the parent process.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from contenders import CONTENDERS, TASKS, missing, periods


class Process:
    """A contender in another environment, as the parent process sees it."""

    def __init__(self, python: str, name: str) -> None:
        """Start the process. After that, `problem` says why the contender cannot run; it is empty if it can."""
        self._child = subprocess.Popen(
            [python, __file__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            hello = self._read()
        except (RuntimeError, ValueError) as error:
            hello = {"problem": str(error), "torch": ""}
        self.problem, self.torch = hello["problem"], hello["torch"]

    def quantiles(self, task: str, steps: int, warm_up: int, quantiles: Sequence[float]) -> list[float]:
        """Train once. Return the quantiles of the time of a step."""
        request = {"task": task, "steps": steps, "warm_up": warm_up, "quantiles": list(quantiles)}
        assert self._child.stdin is not None
        print(json.dumps(request), file=self._child.stdin, flush=True)
        return list(self._read()["quantiles"])

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self._child.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(60)


def quantiles_of(ordered: Sequence[float], quantiles: Sequence[float]) -> list[float]:
    """Return quantiles of values in ascending order."""
    return [ordered[int(len(ordered) * quantile)] for quantile in quantiles]


@contextlib.contextmanager
def own_output() -> Iterator[Any]:
    """Yield the real stdout of the process. In the `with` block, everything that libraries print goes to stderr."""
    output, sys.stdout = sys.stdout, sys.stderr
    try:
        yield output
    finally:
        sys.stdout = output


def main() -> None:
    """Answer each line of the input."""
    name = sys.argv[1]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with own_output() as output, tempfile.TemporaryDirectory() as folder:
        absent = missing(name)
        problem = f"{' and '.join(absent)} is not installed there" if absent else ""
        print(json.dumps({"problem": problem, "torch": torch.__version__}), file=output, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            ordered = periods(CONTENDERS[name], TASKS[asked["task"]], asked["steps"], Path(folder), asked["warm_up"])
            print(json.dumps({"quantiles": quantiles_of(ordered, asked["quantiles"])}), file=output, flush=True)


if __name__ == "__main__":
    main()
