"""Where the contenders run: in the process of the benchmark, or in the Python of another environment.

Composer needs an older torch, so it runs in another environment. The plain loop runs there too, as the contender
`raw torch of Composer`. The ratios of Composer divide by this plain loop, so the version of torch does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

import torch
from common import COMPOSER, COMPOSER_RAW, RAW, Benchmark
from contenders import CONTENDERS, missing
from other_python import OtherPython

ENVIRONMENT = "TRAINBUS_BENCH_COMPOSER"
"""The environment variable with the path of a Python whose environment has Composer."""

T = TypeVar("T")


class Places:
    """The contenders that can run, and where they run. Use it in a `with` block."""

    def __init__(self, benchmark: Benchmark, *wanted: str) -> None:
        """Find the contenders. Record the missing ones as left out.

        Args:
            benchmark: records the contenders that are left out.
            *wanted: the contenders. Default: all.
        """
        self.names: list[str] = []
        self._other: OtherPython | None = None
        for name in wanted or CONTENDERS:
            if name == COMPOSER:
                self._other, problem = _composer()
                if not problem:
                    self.names += [COMPOSER_RAW, COMPOSER]
            else:
                absent = " and ".join(missing(name))
                problem = f"{absent} is not installed" if absent else ""
                if not problem:
                    self.names.append(name)
            if problem:
                benchmark.leave_out(name, problem)

    def bind(self, function: Callable[..., T], name: str, *arguments: object) -> Callable[[], T]:
        """Return a function that calls `function(name, *arguments)` where the contender runs."""
        if self._other is None or name not in (COMPOSER_RAW, COMPOSER):
            return partial(function, name, *arguments)
        return partial(self._other.call, function, RAW if name == COMPOSER_RAW else name, *arguments)

    def __enter__(self) -> Places:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._other is not None:
            self._other.close()


def _composer() -> tuple[OtherPython | None, str]:
    """Start the Python of Composer. Return it, and the reason if Composer cannot run there."""
    python = os.environ.get(ENVIRONMENT)
    if not python:
        return None, f"{ENVIRONMENT} names no Python that has it"
    try:
        other = OtherPython(python, torch.get_num_threads())
    except RuntimeError as error:
        return None, str(error)
    try:
        absent = other.call(missing, COMPOSER)
    except RuntimeError as error:
        other.close()
        return None, str(error)
    if absent:
        other.close()
        return None, f"{' and '.join(absent)} is not installed in the environment that {ENVIRONMENT} names"
    return other, ""
