"""The pytest plugin of `trainbus.testing`.

Name it in `conftest.py`: `pytest_plugins = ["trainbus.testing.fixtures"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..events import Trace
from . import golden, runs
from .clock import VirtualClock
from .tracker import FakeTracker


def pytest_configure(config: pytest.Config) -> None:
    """Register the pytest markers of `trainbus.testing`."""
    config.addinivalue_line("markers", "two_processes: starts two processes; leave it out with -m 'not two_processes'")


@pytest.fixture
def tiny_run(tmp_path: Path) -> Iterator[Callable[..., runs.TinyRun]]:
    """A function that trains a tiny model with callbacks, and returns a `TinyRun`: events, ledger, logs and weights."""
    done: list[runs.TinyRun] = []

    def run(*callbacks: Any, **options: Any) -> runs.TinyRun:
        options = {"folder": tmp_path / f"run-{len(done)}", **options}
        done.append(runs.tiny_run(*callbacks, **options))
        return done[-1]

    yield run
    for each in done:
        each.trainer.end()


@pytest.fixture
def virtual_clock() -> Iterator[VirtualClock]:
    """Time that stands still until the test moves it."""
    with VirtualClock().running() as clock:
        yield clock


@pytest.fixture
def fake_tracker() -> FakeTracker:
    """A tracker that stores rows and summary in memory."""
    return FakeTracker()


@pytest.fixture
def golden_trace(request: pytest.FixtureRequest) -> Callable[[Trace, str], None]:
    """A function that compares a trace with `golden/<name>.trace` in the folder of the test.

    With `UPDATE_GOLDEN=1` in the environment, the function writes this file instead.
    """

    def check(trace: Trace, name: str) -> None:
        golden.assert_golden_trace(trace, request.path.parent / "golden" / f"{name}.trace")

    return check
