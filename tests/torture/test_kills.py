"""A run that is killed many times while it saves leaves valid checkpoints and reaches the uninterrupted result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import environment

PROGRAM = Path(__file__).parent.parent / "engine" / "kill_program.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (("random", "100", "2"), "of 100 kills came in the middle of saving"),
        (("each", "new"), "1 apart"),
        (("each", "replaced"), "1 apart"),
    ],
    ids=["at random moments", "at each call", "at each call of a save of a step that is there"],
)
def test_a_run_killed_many_times_equals_an_uninterrupted_run(how: tuple[str, ...], said: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), *how], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
