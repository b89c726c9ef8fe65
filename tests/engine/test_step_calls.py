"""The Python calls of a step do not grow."""

from __future__ import annotations

from pathlib import Path

from support.processes import run

CEILING = 350
"""Python calls of a step with the default callbacks and torch 2.13. A plain loop makes 327."""


def test_a_step_makes_no_more_python_calls_than_recorded(tmp_path: Path):
    printed = run(Path(__file__).with_name("step_calls_program.py"), tmp_path, timeout=100)
    ours, plain = map(int, printed.split()[-2:])
    assert plain > 200, "the counter does not see the calls of a plain loop"
    assert ours <= CEILING, f"{ours} calls a step; a plain loop makes {plain}"
