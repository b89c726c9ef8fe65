"""A run killed during a save: its checkpoints are complete, and the resumed run equals the uninterrupted run.

`make torture` kills at every call of a save. Here it is every fourth.
"""

from __future__ import annotations

import re
from pathlib import Path

from support.processes import run_program

PROGRAM = Path(__file__).with_name("kill_program.py")


def killed(*words: object) -> str:
    """Run the program that kills, and return the last line it prints."""
    return run_program(PROGRAM, *map(str, words), timeout=90).stdout.splitlines()[-1]


def test_a_run_killed_ten_times_ends_like_an_undisturbed_run(tmp_path: Path):
    assert "of 10 kills came in the middle of saving" in killed(tmp_path, "random", 10, 1)


def test_the_run_resumes_after_a_kill_in_a_call_of_a_save(tmp_path: Path):
    found = re.fullmatch(r"ended at calls up to (\d+), 4 apart", killed(tmp_path, "each", "replaced", 4))
    assert found
    assert int(found[1]) > 40
