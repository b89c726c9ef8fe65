"""An unusable output folder is an error before the first step. A run has one folder after `os.chdir` too."""

from __future__ import annotations

import copy
import errno
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import names_in
from support.data import points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import Callback, ControlFile, JsonLines, StatusFile, TrainingArguments
from trainbus.engine.checkpoint.write import disk_space
from trainbus.events.errors import ArgumentError, CheckpointError

SAVES = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}


class Steps(Callback):
    """Counts steps."""

    def __init__(self) -> None:
        self.done = 0

    def on_step_end(self) -> None:
        self.done += 1


@pytest.mark.parametrize("kind", ["a file", "below a file", "no file system for files", "best"])
def test_an_unusable_folder_is_refused_before_the_first_step(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    folder = {"below a file": tmp_path / "file" / "run", "no file system for files": Path("/proc/trainbus")}
    steps, args = Steps(), dict(SAVES)
    if kind == "best":
        args |= {"save_strategy": "best", "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 1}
    run = regression_trainer(folder.get(kind, tmp_path / "file"), args=args, callbacks=[steps], eval_dataset=points(4))
    with pytest.raises(CheckpointError, match=r"output_dir='.*' cannot be written to: .*Set `output_dir` to a folder"):
        run.train()
    assert steps.done == 0


def test_a_full_disk_is_found_before_the_first_step(tmp_path: Path, monkeypatch: Any) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_space.os, "fsync", full)
    steps = Steps()
    with pytest.raises(CheckpointError, match=r"No space left on device. Free some space"):
        regression_trainer(tmp_path / "run", args=SAVES, callbacks=[steps]).train()
    assert steps.done == 0
    assert names_in(tmp_path / "run") == []


def test_with_warnings_for_save_errors_the_run_trains(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("a file")
    steps = Steps()
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        regression_trainer(tmp_path / "file", args={**SAVES, "on_save_error": "warn"}, callbacks=[steps]).train()
    assert steps.done == 2
    assert "cannot be written to" in caplog.text


def test_a_run_without_saves_needs_no_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("a file")
    regression_trainer(tmp_path / "file", args={"max_steps": 1}).train()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    regression_trainer(tmp_path / "none" / "run", args={"max_steps": 1}).train()
    assert [path.name for path in (tmp_path / "none" / "run").iterdir()] == ["run_status.json"]


def test_the_check_leaves_no_file(tmp_path: Path) -> None:
    run = regression_trainer(tmp_path / "deep" / "run", args=SAVES)
    seen: list[list[str]] = []
    run.on("on_train_begin", lambda: seen.append(names_in(tmp_path / "deep" / "run")))
    run.train()
    assert seen == [[]]
    assert names_in(tmp_path / "deep" / "run") == ["checkpoint-1", "checkpoint-2"]


@pytest.mark.parametrize("when", ["before training", "while training"])
def test_a_relative_folder_is_one_folder(when: str, tmp_path: Path, monkeypatch: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    args = {**SAVES, "max_steps": 4, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}
    run = regression_trainer("run", Regression(), args=args, callbacks=[StatusFile()], eval_dataset=points(4))
    if when == "before training":
        os.chdir(second)
    run.on("on_step_end", lambda: os.chdir(second), once=2)
    run.train()
    run.save_model()
    run.save_state()
    assert names_in(second) == []
    assert {f"checkpoint-{step}" for step in range(1, 5)} < {*names_in(first / "run")}
    assert (first / "run" / "model.safetensors").is_file()
    again = regression_trainer("unused", Regression(), args=args, eval_dataset=points(4))
    again.args = again.run.args = run.args
    again.train(resume_from_checkpoint=True)
    assert names_in(second) == []


def test_the_output_path_is_where_the_arguments_were_made(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    args = TrainingArguments("run")
    assert (args.output_dir, args.output_path) == ("run", tmp_path / "run")
    assert TrainingArguments(str(tmp_path)).output_path == tmp_path
    (tmp_path / "other").mkdir()
    os.chdir("other")
    assert (args.output_dir, args.output_path) == ("run", tmp_path / "run")
    assert copy.deepcopy(args).output_path == tmp_path / "run"
    assert replace(args, seed=1).output_path == tmp_path / "other" / "run"
    assert args == TrainingArguments("run")


def test_all_output_paths_stay_in_the_first_working_folder(tmp_path, monkeypatch):
    first, later = tmp_path / "first", tmp_path / "later"
    first.mkdir()
    later.mkdir()
    monkeypatch.chdir(first)
    trackers = [JsonLines(path="rows.jsonl"), ControlFile("control")]
    args = {"logging_dir": "events", "report_to": "tensorboard", "logging_strategy": "steps", "logging_steps": 1}
    run = regression_trainer("out", args={**args, "max_steps": 2}, callbacks=trackers)
    monkeypatch.chdir(later)
    (first / "control").mkdir()
    run.train()
    assert not [*later.iterdir()]
    assert {"rows.jsonl", "events"} <= {path.name for path in first.iterdir()}


@pytest.mark.parametrize(("name", "reason"), [("x" * 300, "too long"), ("a\0b", "null byte")])
def test_an_impossible_output_folder_is_refused_before_the_first_step(name, reason, tmp_path):
    args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(CheckpointError, match=f"cannot be written to: .*{reason}.* Set `output_dir`"):
        regression_trainer(tmp_path / name, args=args).train()


class WritesAsUnderTransformers(Callback):
    """Writes into the output folder at its first event, as callbacks of transformers such as CodeCarbon's do."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self.write)

    def write(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        Path(args.output_dir, "mine.txt").write_text("written")


@pytest.mark.parametrize("event", ["on_init_end", "on_train_begin"])
def test_callbacks_in_the_style_of_transformers_find_the_folder(event: str, tmp_path: Path) -> None:
    regression_trainer(
        tmp_path / "runs" / "one", callbacks=[WritesAsUnderTransformers(event)], args={"max_steps": 1}
    ).train()
    assert (tmp_path / "runs" / "one" / "mine.txt").exists()


def test_a_callback_that_is_added_later_finds_the_folder(tmp_path: Path) -> None:
    run = regression_trainer(tmp_path / "run", args={"max_steps": 1})
    run.add_callback(WritesAsUnderTransformers("on_train_begin"))
    run.train()
    assert (tmp_path / "run" / "mine.txt").exists()


def test_a_trainer_without_such_callbacks_creates_no_folder(tmp_path: Path) -> None:
    regression_trainer(tmp_path / "run", callbacks=[Steps()])
    assert not (tmp_path / "run").exists()


def test_an_empty_name_is_refused_and_a_dot_is_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"`output_dir` is ''; set it to the path of a folder, such as '\.'"):
        TrainingArguments("")
    assert TrainingArguments(".").output_path.samefile(tmp_path)
