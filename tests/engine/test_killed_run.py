"""A run killed during a save: its checkpoints are complete, and the resumed run equals the uninterrupted run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.processes import environment

PROGRAM = Path(__file__).with_name("kill_program.py")


def killed(*words: object) -> str:
    """Run the program that kills, and return the last line it prints."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, words)], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_a_run_killed_ten_times_ends_like_an_undisturbed_run(tmp_path: Path):
    assert "of 10 kills came in the middle of saving" in killed(tmp_path, "random", 10, 1)


def test_the_run_resumes_after_a_kill_in_any_call_of_a_save(tmp_path: Path):
    found = re.fullmatch(r"ended at each of (\d+) calls", killed(tmp_path, "each", "replaced"))
    assert found
    assert int(found[1]) > 40
