"""The commands of the pages in docs/see_the_run/ run, after the examples of their page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from support.pages import DOCS
from support.shown import first_missing
from trainbus.engine.commands.main import main

FOLDER = DOCS / "see_the_run"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OUTPUT = re.compile(r"^```bash\n([^\n]+)\n```\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STATUS = {"trainbus diff outputs/one outputs/two": 1, "trainbus diff outputs/one outputs/two --json": 1}
PROGRAM = BLOCK.findall((FOLDER / "preview.md").read_text(encoding="utf-8"))[0][1]


def answers_of(page: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Run the examples and the commands of a page in the current folder. Return what each command prints.

    The commands must print the outputs that the page shows.
    """
    path = FOLDER / page
    text = path.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert PROGRAM in [code for _, code in blocks], "every page shows the program"
    Path("train.py").write_text(PROGRAM)
    namespace = {"__name__": "docs"}
    answers = {}
    for language, code in blocks:
        if language == "python":
            exec(compile(code, str(path), "exec", dont_inherit=True), namespace)
            continue
        for line in code.splitlines():
            capsys.readouterr()
            assert main(shlex.split(line)[1:]) == STATUS.get(line, 0), line
            answers[line] = capsys.readouterr().out
    shown = OUTPUT.findall(text)
    assert {line: first_missing(each, answers[line]) for line, each in shown} == {line: None for line, _ in shown}
    return answers


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_commands_of_the_page_about_recordings_run(capsys: pytest.CaptureFixture[str]) -> None:
    answers = answers_of("recordings.md", capsys)
    assert answers["trainbus report outputs/one outputs/two -o report.html"] == "wrote report.html\n"
    assert answers["trainbus diff outputs/one outputs/one"] == ""
    assert answers["trainbus diff outputs/one outputs/two"].startswith(
        "step 1: the learning rate differs at on_step_end"
    )
    assert "request training_stop" in answers['trainbus replay outputs/one --callback "rules:StopBelow(limit=9)"']


@pytest.mark.parametrize(("page", "commands"), [("preview.md", 5), ("speed.md", 1), ("capsules.md", 1)])
def test_the_commands_of_a_page_run(page: str, commands: int, capsys: pytest.CaptureFixture[str]) -> None:
    answers = answers_of(page, capsys)
    assert len(answers) == commands
    if page == "preview.md":
        assert "No difference" in answers["trainbus preview train.py --against plan.json"]


def test_against_shows_the_difference_of_a_changed_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert main(["preview", "train.py", "--out", "plan.json"]) == 0
    (tmp_path / "train.py").write_text(PROGRAM.replace('"save_steps": 10', '"save_steps": 20'))
    capsys.readouterr()
    assert main(["preview", "train.py", "--against", "plan.json"]) == 2
    assert "- step 10: save by Checkpoint, KeepBest" in capsys.readouterr().out
    assert main(["preview", "train.py", "--against", "plan.json", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["equal"], said["differences"][0]) == (False, "- step 10: save by Checkpoint, KeepBest")
    (tmp_path / "train.py").write_text(PROGRAM.replace('"max_steps": 40', '"max_steps": 40, "learning_rate": 0.1'))
    assert main(["preview", "train.py", "--against", "plan.json"]) == 2
    assert "+ learning rate: 0.1 at first" in capsys.readouterr().out
    assert not (tmp_path / "outputs").exists()
    (tmp_path / "train.py").write_text("print('no training')\n")
    assert main(["preview", "train.py"]) == 1
    assert "ended without a call of `train()`" in capsys.readouterr().err
    assert main(["preview", "train.py", "--against", "missing.json"]) == 1
    assert "missing.json" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        main(["preview", "--againts", "plan.json", "train.py"])


def test_set_shows_what_an_argument_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert main(["preview", "train.py", "--set", "save_steps=20"]) == 0
    said = capsys.readouterr().out
    assert "- step 10: save by Checkpoint, KeepBest\n+ step 10: save by KeepBest" in said
    assert main(["preview", "train.py", "--set", "save_steps=10"]) == 0
    assert capsys.readouterr().out == "No decision changes with save_steps=10.\n"
    assert main(["preview", "train.py", "--set", "eval_strategy=epoch", "--set", "eval_steps=3"]) == 0
    assert "eval_steps has no effect with eval_strategy='epoch'" in capsys.readouterr().out
    assert main(["preview", "train.py", "--set", "max_steps=20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_steps"] == 20
    for change, problem in (("save_step=20", "did you mean 'save_steps'"), ("save_steps", "has no value")):
        assert main(["preview", "train.py", "--set", change]) == 1
        assert problem in capsys.readouterr().err
