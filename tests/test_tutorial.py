"""The tutorial for plugins: every command of the page runs, in the order of the page."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_docs import blocks

from trainbus.engine.commands.main import COMMANDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "plugins" / "tutorial.md"
TYPING = PAGE.parents[2] / ".typing"

PROGRAMS = {
    "trainbus": ("-m", "trainbus.engine.commands.main"),
    "pip": ("-m", "pip"),
    "pytest": ("-m", "pytest", "-q", "-p", "no:cacheprovider"),
    "mypy": ("-m", "mypy", "--follow-imports=silent", "--cache-dir=mypy-cache"),
    "python": (),
}
"""The program of a command -> how this interpreter runs it."""


def words_of(command: str, installed: Path) -> list[str]:
    """Return the words of a command. Packages are installed into a folder, without the network."""
    program, *words = shlex.split(command)
    assert program in PROGRAMS, f"the tutorial uses {program}, which this test does not know"
    if words[0] == "install":
        target = ["--target", str(installed), "--no-deps", "--no-build-isolation", "--quiet"]
        words = ["install", *target, *(word for word in words[1:] if word != "--editable")]
    if words[:2] == ["-m", "build"]:
        words.insert(2, "--no-isolation")
    return [sys.executable, *PROGRAMS[program], *words]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    installed, printed, seconds = tmp_path / "installed", {}, {}
    variables = {**os.environ, "PYTHONPATH": str(installed), "MYPYPATH": str(TYPING)}
    for block in blocks(PAGE):
        if block.info == "python no-run" and block.code.startswith("# "):
            (tmp_path / block.code.partition("\n")[0].removeprefix("# ")).write_text(block.code, encoding="utf-8")
        for command in block.code.splitlines() if block.info == "bash" else ():
            began = time.process_time()
            done = subprocess.run(
                words_of(command, installed), cwd=tmp_path, env=variables, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}\n{(done.stdout + done.stderr)[-4000:]}"
            printed[command], seconds[command] = done.stdout, time.process_time() - began
    assert "stopped at step 3 by LossFloor: the loss is below 10 for 3 steps" in printed["python train.py"]
    assert " passed" in printed["pytest loss-floor"]
    assert list((tmp_path / "loss-floor" / "dist").glob("loss_floor-0.1.0-*.whl"))


def test_the_tutorial_names_commands_that_exist() -> None:
    used = [
        line.split()[1]
        for block in blocks(PAGE)
        if block.info == "bash"
        for line in block.code.splitlines()
        if line.startswith("trainbus ")
    ]
    assert used
    assert set(used) <= COMMANDS.keys()
