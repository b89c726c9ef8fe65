"""The commands of `trainbus` start quickly: they import only their own module, and most do without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainbus.engine.commands.main import COMMANDS, main

LIGHT = {
    "version": ["--version"],
    "help": ["--help"],
    "misspelled": ["statsu", "outputs"],
    "status": ["status", "outputs"],
    "tell": ["tell", "outputs", "save"],
    "trace": ["trace", "outputs"],
    "diff": ["diff", "outputs", "outputs"],
    "plugins": ["plugins"],
    "plugins --json": ["plugins", "--json"],
    "plugins list": ["plugins", "list"],
    "new-plugin": ["new-plugin", "9lives"],
    "checkpoints": ["checkpoints", "outputs"],
    "plan": ["plan", "--params", "7b"],
    "run": ["run", "nothing.py"],
    **{f"{command} --help": [command, "--help"] for command in COMMANDS if command not in ("compose", "preview")},
}
"""Command lines that do without torch."""

PROGRAM = """
import contextlib, io, json, sys
from trainbus.engine.commands.main import main
heavy = ("torch", "numpy", "trainbus.engine.arguments", "trainbus.engine.trainer")
before, found = set(sys.modules), {}
for name, words in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main(words)
    found[name] = sorted(set(sys.modules) - before)
    assert not set(heavy) & set(sys.modules), (name, set(heavy) & set(sys.modules))
    before |= set(sys.modules)
print(json.dumps({"first": found, "all": len(sys.modules)}))
"""


def loaded(commands: dict[str, list[str]], folder: Path) -> dict[str, list[str]]:
    """Run command lines in one fresh interpreter. Return the modules that each imports first."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[str]] = json.loads(done.stdout)["first"]
    return result


def test_commands_do_without_torch(tmp_path: Path) -> None:
    first = loaded(LIGHT, tmp_path)
    assert first.keys() == LIGHT.keys()


def test_a_command_imports_no_module_of_another_command(tmp_path: Path) -> None:
    folder = "trainbus.engine.commands."
    others = {f"{folder}{module}" for module, _ in COMMANDS.values()}
    first = loaded({"version": ["--version"], "plugins": ["plugins"], "status": ["status", "x"]}, tmp_path)
    assert others & set(first["version"]) == set()
    assert others & set(first["plugins"]) == {f"{folder}plugins"}
    assert others & set(first["status"]) == {f"{folder}status"}


def test_the_help_lists_every_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for command, (_, text) in COMMANDS.items():
        assert f"{command} {text}" in shown


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "compose"])
def test_a_command_has_a_help_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: trainbus {command}")


def test_the_package_itself_is_the_command(tmp_path: Path) -> None:
    """`python -m trainbus` works where the script `trainbus` is not on the path."""
    line = [sys.executable, "-m", "trainbus"]
    shown = subprocess.run([*line, "--version"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (shown.returncode, shown.stdout.split()[0]) == (0, "trainbus"), shown.stderr
    wrong = subprocess.run([*line, "statu", "."], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert wrong.returncode == 2
    assert "status" in wrong.stderr
