"""The first hour: every command of the page runs, in the order of the page, and prints what the page shows."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_docs import Block, blocks

from support.processes import environment, run_program
from support.shown import first_missing
from trainbus.engine.commands.main import main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "first_hour.md"
FILE = re.compile(r"`(\w+\.py)`")
CTRL_C_STEP = re.compile(r"(?:SIGINT: step|resumed .*, at step) (\d+)")
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
LINES = 119
TRAIN = "    trainer.train("
CTRL_C = """\
    import pathlib, signal
    if not pathlib.Path("outputs").exists():
        trainer.on("on_step_end", lambda: signal.raise_signal(signal.SIGINT), once=25, id="ctrl-c")
"""
QUICK = {
    "range(2000)": "range(200)",
    "learning_rate=2e-4": "learning_rate=2e-3",
    "patience=5": "patience=2",
    TRAIN: CTRL_C + TRAIN,
}
"""What the quick test changes in the programs. The first session sends itself the signal of Ctrl-C."""

Run = Callable[[str, bool], str]
"""From a command of the page, and whether a reader presses Ctrl-C, to what the command prints."""


def paragraphs() -> Iterator[tuple[str, Block]]:
    """Yield each block of the page, with the text between the block and the one before it."""
    lines, end = PAGE.read_text(encoding="utf-8").splitlines(), 0
    for block in blocks(PAGE):
        yield "\n".join(lines[end : block.line - 2]), block
        end = block.line + block.code.count("\n")


def check_output(shown: str, printed: str, where: str, exact: bool) -> None:
    """Assert that the shown lines were printed. If `exact` is False, numbers may differ."""
    missing = first_missing(comparable(shown, exact), comparable(printed, exact))
    assert missing is None, f"{where} shows {missing!r}:\n{printed[-6000:]}"


def comparable(text: str, exact: bool) -> str:
    """Return a text without what differs for each reader: widths of columns, and the step of Ctrl-C."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line if exact and not CTRL_C_STEP.search(line) else NUMBER.sub("#", line) for line in lines)


def follow(folder: Path, run: Run, changes: dict[str, str]) -> dict[str, list[str]]:
    """Follow the page in a folder, as a reader does. Return what each command printed, in the order of its runs."""
    answers: dict[str, list[str]] = {}
    printed = name = ""
    for text, block in paragraphs():
        name = (FILE.findall(text) or [name])[-1]
        match block.info:
            case "python":
                code = block.code
                for old, new in changes.items():
                    code = code.replace(old, new)
                (folder / name).write_text(code, encoding="utf-8")
            case "bash":
                for line in block.code.splitlines():
                    printed = run(line, "press Ctrl-C" in text)
                    answers.setdefault(line, []).append(printed)
            case "text":
                check_output(block.code, printed, f"first_hour.md:{block.line}", exact=not changes)
    return answers


def check(answers: dict[str, list[str]], folder: Path) -> None:
    interrupted, resumed = answers["python train.py"]
    assert "by StopOnSignal: SIGINT" in interrupted
    assert CTRL_C_STEP.findall(interrupted) == CTRL_C_STEP.findall(resumed)
    assert "by EarlyStopping: eval_loss has not improved" in resumed
    asked = answers["trainbus status outputs/flats"][0]
    assert "by EarlyStopping" in asked.splitlines()[0]
    for question in (
        "best +eval_loss .* at step",
        "verdict +([A-Z]+-BOUND|UNKNOWN): ",
        "time +.* in this session",
        "goodput .* in 2 s",
    ):
        assert re.search(question, asked), f"status does not answer {question}:\n{asked}"
    assert (folder / "outputs" / "flats" / "report.html").stat().st_size > 10_000
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 2
    [exported] = answers["trainbus checkpoints export --best outputs/flats model"]
    best = re.findall(r"best +eval_loss \S+ at step (\d+), loaded", resumed)
    assert exported == f"exported checkpoint-{best[0]} to model: model.safetensors\n"


def test_the_commands_of_the_first_hour_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The programs have fewer rows, and `trainbus` runs in this process."""
    monkeypatch.chdir(tmp_path)

    def run(line: str, interrupted: bool) -> str:
        program, *words = line.split()
        if program == "python":
            code = 130 if interrupted else 0
            done = run_program(tmp_path / words[0], timeout=60, code=code, imported=("datasets",), folder=tmp_path)
            return done.stdout + done.stderr
        capsys.readouterr()
        assert main(words) == 0, line
        return capsys.readouterr().out

    check(follow(tmp_path, run, QUICK), tmp_path)


@pytest.mark.slow
def test_a_reader_of_the_first_hour_sees_what_it_shows(tmp_path: Path) -> None:
    def run(line: str, interrupted: bool) -> str:
        program, *words = line.split()
        module = {"python": [], "trainbus": ["-m", "trainbus.engine.commands.main"]}[program]
        process = subprocess.Popen(
            [sys.executable, *module, *words],
            cwd=tmp_path,
            env=environment(OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        printed, waits = "", interrupted
        with process:
            for each in process.stdout:
                if waits and " eval_loss " in each:
                    process.send_signal(signal.SIGINT)
                    waits = False
                printed += each
        assert process.returncode == (130 if interrupted else 0), f"{line}\n{printed[-4000:]}"
        return printed

    check(follow(tmp_path, run, {}), tmp_path)


def test_the_first_hour_is_one_page_and_the_first_link() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= LINES
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([^)]*)\)", readme)[0] == "docs/first_hour.md"
