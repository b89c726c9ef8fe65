"""Runs of all kinds, interrupted in each step by a signal or killed, resume as if they had not stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import TESTS, environment

sys.path.insert(0, str(TESTS / "engine"))
from interrupted_runs import KINDS, signalled

PROGRAM = TESTS / "engine" / "interrupted_runs.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_interrupted_in_each_step_equals_an_uninterrupted_one(kind: str, number: int, tmp_path: Path) -> None:
    assert signalled(tmp_path, kind, [], number) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_in_each_step_equals_an_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAM), str(tmp_path), kind, "1"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
