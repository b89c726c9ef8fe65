"""A run that gets many stop signals at random moments saves each time and reaches the uninterrupted result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import environment

PROGRAM = Path(__file__).parent.parent / "engine" / "signal_program.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "times", "workers"), [("SIGTERM", 30, 0), ("SIGINT", 30, 0), ("SIGUSR1", 30, 0), ("SIGTERM", 10, 2)]
)
def test_a_run_stopped_many_times_equals_an_uninterrupted_run(name: str, times: int, workers: int, tmp_path: Path):
    words = [str(word) for word in (tmp_path, name, times, 3, workers)]
    done = subprocess.run([sys.executable, str(PROGRAM), *words], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"stopped {times} times by {name}" in done.stdout
