"""A run that is killed while it saves: what it left is whole, and it ends as if nobody had killed it."""

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


def test_a_run_that_is_killed_ten_times_ends_as_one_that_is_not(tmp_path: Path):
    assert "of 10 kills came in the middle of saving" in killed(tmp_path, "random", 10, 1)


def test_whichever_call_of_a_save_is_the_last_the_run_goes_on(tmp_path: Path):
    found = re.fullmatch(r"ended at each of (\d+) calls", killed(tmp_path, "each", "replaced"))
    assert found
    assert int(found[1]) > 40
