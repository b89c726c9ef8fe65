"""Several runs write to one folder, and the last one is killed: a report has only data of the last run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.data import points
from support.models import Regression
from support.processes import environment
from trainbus import Trainer, TrainingArguments
from trainbus.engine.api.report.collect import RunData, collect
from trainbus.engine.api.report.last_run import LastRun
from trainbus.engine.commands.main import main

PROGRAM = """
    import os, signal, sys
    from support.data import points
    from support.models import Regression
    from trainbus import Trainer, TrainingArguments
    from trainbus.events.stages import Stage

    def train(name, steps, event="", at=0, **options):
        args = TrainingArguments(
            sys.argv[1], run_name=name, max_steps=steps, logging_steps=1, eval_strategy="steps", eval_steps=2,
            save_steps=2, per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True, **options,
        )
        trainer = Trainer(Regression(), args, train_dataset=points(40), eval_dataset=points(4))
        if event:
            def kill(state):
                if state.global_step == at:
                    os.kill(os.getpid(), signal.SIGKILL)
            trainer.on(event, kill, stage=Stage.RELEASE)
        trainer.train()

    train("first", 8, record=True, report_to="jsonl")
    options = {"record": True, "report_to": "jsonl"} if "all" in sys.argv[4] else {"report_to": "none"}
    if "unsaved" in sys.argv[4]:
        options["save_strategy"] = "no"
    train("second", 5, sys.argv[2], int(sys.argv[3]), **options)
"""


MOMENTS = [
    (event, step, files)
    for event, step in (("on_train_begin", 0), ("on_step_end", 1), ("on_save_begin", 2), ("on_step_end", 4))
    for files in ("all", "checkpoints", "unsaved")
    if (event, files) != ("on_save_begin", "unsaved")  # that run saves nothing
]
"""Moments at which the second run is killed: event, step, and the files that this run writes."""


def write_two_runs(folder: Path, event: str, step: int, files: str) -> RunData:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), event, str(step), files]
    ended = subprocess.run(command, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return collect(folder)


@pytest.mark.parametrize(("event", "step", "files"), MOMENTS)
def test_a_report_has_no_data_of_an_earlier_run(event: str, step: int, files: str, tmp_path: Path) -> None:
    data = write_two_runs(tmp_path, event, step, files)
    assert data.status == "killed"
    assert (data.max_steps, data.arguments.get("run_name", "second")) == (5, "second")
    curves = [*data.curves.values(), *data.steps.values()]
    steps = [data.step, *(step for curve in curves for step in curve.steps), *(each["step"] for each in data.decisions)]
    steps += [each["step"] for each in (*data.evaluations, *data.checkpoints)]
    assert max(steps) <= step
    assert data.best is None or data.best["step"] <= step
    goodput = data.goodput or {"sessions": []}
    assert len(goodput["sessions"]) == (files != "unsaved")


def test_status_and_trace_do_not_present_an_earlier_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_two_runs(tmp_path, "on_step_end", 1, "unsaved")
    main(["status", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["goodput"], found["metrics"]) == ("killed", None, {})
    main(["trace", str(tmp_path), "--rows"])
    assert "events.jsonl is of an earlier run" in capsys.readouterr().err


def trainer_in(folder: Path, rows: int = 40) -> Trainer:
    args = TrainingArguments(
        str(folder), max_steps=4, logging_steps=1, save_steps=2, per_device_train_batch_size=4, use_cpu=True,
        disable_tqdm=True, report_to="none",
    )  # fmt: skip
    return Trainer(Regression(), args, train_dataset=points(rows))


@pytest.mark.parametrize("resumes", [True, False])
def test_a_run_that_fails_before_it_begins_has_the_data_of_the_run_that_it_resumes(
    resumes: bool, tmp_path: Path
) -> None:
    trainer_in(tmp_path).train()
    failing = trainer_in(tmp_path)
    failing.get_train_dataloader = lambda: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        failing.train(resume_from_checkpoint=resumes)
    data = collect(tmp_path)
    assert data.status == "failed"
    assert bool(data.curves) == bool(data.checkpoints) == resumes


def test_a_resumed_run_has_the_data_of_all_its_sessions(tmp_path: Path) -> None:
    trainer_in(tmp_path).train()
    shutil.rmtree(tmp_path / "checkpoint-4")
    began = json.loads((tmp_path / "run_status.json").read_text())["began"]
    trainer_in(tmp_path).train(resume_from_checkpoint=True)
    assert json.loads((tmp_path / "run_status.json").read_text())["began"] == began
    data = collect(tmp_path)
    assert data.curves["loss"].steps == [1, 2, 3, 4]
    assert [each["step"] for each in data.checkpoints] == [2, 4]


def test_a_clock_behind_the_clock_of_the_run_hides_no_file(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), max_steps=2, logging_steps=1, report_to="jsonl", use_cpu=True)
    Trainer(Regression(), args, train_dataset=points(8)).train()
    for path in tmp_path.rglob("*"):
        found = path.stat()
        os.utime(path, (found.st_atime - 7200, found.st_mtime - 7200))
    data = collect(tmp_path)
    assert "metrics.jsonl" in data.sources
    assert not [note for note in data.notes if "earlier run" in note]


@pytest.mark.parametrize("value", ["text", None, []])
def test_times_that_are_not_numbers_are_no_error(value: object, tmp_path: Path) -> None:
    status = {"status": "done", "step": 2, "epoch": 1.0, "time": 5.0, "host": "", "pid": 1, "run_id": "a"}
    found = LastRun.of({**status, "began": value}, [{"run": "a", "time": value}], [])
    assert (found.run_id, found.began, found.step) == ("a", 0.0, 2)
