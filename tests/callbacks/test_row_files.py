"""Rows in files: whole lines at any time, no duplicate after a kill, and files of earlier runs that are kept."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.processes import environment
from trainbus import Csv, JsonLines, Log, Trainer, TrainingArguments, every
from trainbus.callbacks.base.row_tracker import Outcome
from trainbus.callbacks.monitor.row_files import CsvSession, JsonLinesSession
from trainbus.events.errors import ArgumentError

AXIS = "train/global_step"
PROGRAM = Path(__file__).parent.parent / "integrations" / "row_file_program.py"


def steps_of(path):
    return [json.loads(line)[AXIS] for line in path.read_text(encoding="utf-8").splitlines()]


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def train(folder, *callbacks, steps=4, **options):
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    return Trainer(
        nn.Linear(4, 2),
        TrainingArguments(str(folder), max_steps=steps, use_cpu=True, disable_tqdm=True, save_steps=2, **options),
        train_dataset=TensorDataset(x, (x.sum(1) > 0).long()),
        criterion=nn.CrossEntropyLoss(),
        callbacks=[Log(every(1)), *callbacks],
    )


@pytest.mark.slow
def test_a_run_that_is_killed_twice_has_each_step_once_and_is_readable_at_any_time(tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path), "40"]
    for kill_at in (7, 17):  # before the first checkpoint, and between two
        running = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        for line in running.stdout:
            if line.startswith(f"{kill_at}\n"):
                running.send_signal(signal.SIGKILL)
                break
            if line.strip().isdigit() and (tmp_path / "metrics.jsonl").exists():
                text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
                assert text == "" or text.endswith("\n")
                assert all(json.loads(row) for row in text.splitlines())
        running.communicate()
        assert running.returncode == -signal.SIGKILL
    subprocess.run(command, env=environment(), check=True, capture_output=True)
    assert steps_of(tmp_path / "metrics.jsonl") == list(range(1, 41))
    assert [int(row[AXIS]) for row in table(tmp_path / "metrics.csv")] == list(range(1, 41))
    state = json.loads((tmp_path / "checkpoint-40" / "trainer_state.json").read_text(encoding="utf-8"))
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["train/loss"] for row in rows] == losses
    assert [float(row["train/loss"]) for row in table(tmp_path / "metrics.csv")] == losses


def test_a_resume_with_other_arguments_replaces_the_rows_after_the_checkpoint(tmp_path):
    first = train(tmp_path, JsonLines(), Csv(), steps=6)
    first.train()
    first.end()
    inode = (tmp_path / "metrics.jsonl").stat().st_ino
    resumed = train(tmp_path, JsonLines(), Csv(), steps=4, learning_rate=1.0)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    resumed.end()
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4]
    assert len(table(tmp_path / "metrics.csv")) == 4
    assert (tmp_path / "metrics.jsonl").stat().st_ino == inode  # `tail -f` follows it


def test_a_new_run_keeps_the_file_of_the_earlier_run(tmp_path):
    for _ in range(3):
        trainer = train(tmp_path, JsonLines(), Csv())
        trainer.train()
        trainer.end()
    names = sorted(path.name for path in tmp_path.glob("metrics*"))
    assert names == sorted(f"metrics{end}.{kind}" for end in ("", "-1", "-2") for kind in ("jsonl", "csv"))
    assert all(steps_of(path) == [1, 2, 3, 4] for path in tmp_path.glob("metrics*.jsonl"))


def test_an_evaluation_after_the_end_is_appended(tmp_path):
    trainer = train(tmp_path, JsonLines())
    trainer.train()
    trainer.end()
    trainer.evaluate(trainer.train_dataset)
    trainer.end()
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 4]


@pytest.mark.parametrize("kind", [JsonLinesSession, CsvSession])
def test_a_text_that_utf_8_cannot_encode_is_escaped(tmp_path, kind):
    session = kind(tmp_path / "rows", "r", None)
    session.write({AXIS: 1, "text": "a\ud800", "\udc80": 1.0}, 1)
    session.write({AXIS: 2, "text": "b", "new": 1.0}, 2)
    session.finish(Outcome())
    if kind is JsonLinesSession:
        first = json.loads((tmp_path / "rows").read_text(encoding="utf-8").splitlines()[0])
        assert first == {AXIS: 1, "text": "a\ud800", "\udc80": 1.0}
    else:
        assert [row["text"] for row in table(tmp_path / "rows")] == ["a\\ud800", "b"]


def test_the_metrics_of_a_prediction_are_a_row(tmp_path):
    trainer = train(tmp_path, JsonLines())
    trainer.train()
    metrics = trainer.predict(trainer.train_dataset).metrics
    trainer.end()
    *_, last = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (last[AXIS], last["test/loss"]) == (4, metrics["test_loss"])


def test_a_torn_last_line_is_removed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"train/global_step": 1}\n{"train/global_step": 2}\n{"train/glob')
    session = JsonLinesSession(path, "r", 5)
    session.write({AXIS: 3, "a": 1}, 3)
    session.finish(Outcome())
    assert session.last_step == 2
    assert steps_of(path) == [1, 2, 3]


def test_a_file_of_another_program_is_named_and_left_as_it_is(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"loss": 1}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl has a line without a column 'train/global_step'"):
        JsonLinesSession(path, "r", 5)
    assert path.read_text() == '{"loss": 1}\n'


def test_values_without_a_json_form_are_strings_or_left_out(tmp_path):
    session = JsonLinesSession(tmp_path / "m.jsonl", "r", None)
    row = {AXIS: 1, "nan": float("nan"), "inf": -float("inf"), "nested": {"x": [float("nan")]}, "text": "a\nb é"}
    session.write({**row, "tensor": torch.tensor(2.0), "image": torch.zeros(3, 4, 4)}, 1)
    [line] = (tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines()
    expected = {"nan": "NaN", "inf": "-Infinity", "nested": {"x": ["NaN"]}, "text": "a\nb é", "tensor": 2.0}
    assert json.loads(line, parse_constant=pytest.fail) == {AXIS: 1, **expected}


def test_a_new_column_keeps_the_rows_before_it(tmp_path):
    session = CsvSession(tmp_path / "m.csv", "r", None)
    for row in ({AXIS: 1, "a": 1.5}, {AXIS: 2, "b": "x,\ny"}, {AXIS: 3, "a": 2.5, "n": {"k": 1}}):
        session.write(row, row[AXIS])
        assert len(table(tmp_path / "m.csv")) == row[AXIS]
    session.finish(Outcome())
    assert [row["a"] for row in table(tmp_path / "m.csv")] == ["1.5", "", "2.5"]
    assert json.loads(table(tmp_path / "m.csv")[1]["b"]) == "x,\ny"
    resumed = CsvSession(tmp_path / "m.csv", "r", 2)
    assert (resumed.last_step, resumed.columns) == (2, [AXIS, "a", "b", "n"])


def test_a_long_cell_loses_no_row_of_a_table(tmp_path):
    session = CsvSession(tmp_path / "m.csv", "r", None)
    session.write({AXIS: 1, "text": "x" * 300_000}, 1)
    session.write({AXIS: 2, "b": 1.0}, 2)
    session.finish(Outcome())
    assert CsvSession(tmp_path / "m.csv", "r", 2).last_step == 2


def test_a_new_column_of_an_earlier_run_stays_out_of_the_file_of_a_later_run(tmp_path):
    first, path = CsvSession(tmp_path / "m.csv", "r", None), tmp_path / "m.csv"
    first.write({AXIS: 1, "a": 1.0}, 1)
    later = CsvSession(path, "s", None)
    later.write({AXIS: 7, "a": 7.0}, 7)
    first.write({AXIS: 2, "b": 2.0}, 2)
    later.write({AXIS: 8, "a": 8.0}, 8)
    assert [row[AXIS] for row in table(path)] == ["7", "8"]
    assert [(row["a"], row["b"]) for row in table(tmp_path / "m-1.csv")] == [("1.0", ""), ("", "2.0")]


def test_a_row_that_waits_for_space_gets_its_columns(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError

    session = CsvSession(tmp_path / "m.csv", "r", None)
    session.write({AXIS: 1, "a": 1.0}, 1)
    with monkeypatch.context() as full:
        full.setattr(CsvSession, "_replace", fail)
        with pytest.raises(OSError):
            session.write({AXIS: 2, "b": 2.0}, 2)
    session.write({AXIS: 2, "b": 2.0}, 2)
    assert [(row["a"], row["b"]) for row in table(tmp_path / "m.csv")] == [("1.0", ""), ("", "2.0")]


@pytest.mark.parametrize("session_class", [CsvSession, JsonLinesSession])
@pytest.mark.parametrize("row", [{AXIS: 2, "a": 2.0}, {AXIS: 2, "b": 2.0}])
def test_a_file_that_is_deleted_or_replaced_is_an_error(tmp_path, session_class, row):
    path = tmp_path / "rows"
    session = session_class(path, "r", None)
    session.write({AXIS: 1, "a": 1.0}, 1)
    path.unlink()
    for _ in range(2):
        with pytest.raises(OSError, match=r"rows was deleted or .* while the run wrote to it"):
            session.write(row, 2)
        path.write_text("another file\n")
    assert path.read_text() == "another file\n"


def test_a_full_disk_leaves_whole_lines_and_is_a_warning(tmp_path, monkeypatch, caplog):
    real, refused = os.write, []

    def write(file, data):
        step = json.loads(data).get(AXIS) if data.startswith(b'{"train') else None
        if step in (2, 3) and step not in refused:
            refused.append(step)
            return real(file, data[:5])
        return real(file, data)

    monkeypatch.setattr("trainbus.callbacks.monitor.row_files.os.write", write)
    trainer = train(tmp_path, JsonLines())
    trainer.train()
    trainer.end()
    assert trainer.state.global_step == 4
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert "has no space for a row" in caplog.text
    # A row that is written again once the disk has space is not lost.
    complete = steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4]
    assert ("JsonLines did not receive" in caplog.text) is not complete


def test_names_of_the_arguments_build_them(tmp_path):
    trainer = train(tmp_path, report_to=["jsonl", "csv"])
    trainer.train()
    trainer.end()
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4]
    assert len(table(tmp_path / "metrics.csv")) == 4


def test_the_second_row_of_a_step_survives_a_kill_between_the_two(tmp_path):
    def build(steps):
        trainer = train(tmp_path, JsonLines(), Csv(), steps=steps)
        total = torch.zeros(())

        def twice(run, state):
            run.log({"total": total.add_(1)})
            run.log({"total": total.add_(1)})

        trainer.on("on_step_end", twice)
        return trainer

    first = build(4)
    first.train()
    first.end()
    whole = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line)["train/total"] for line in whole.splitlines()] == list(range(1, 9))
    for name, kept in (("metrics.jsonl", 7), ("metrics.csv", 8)):
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:kept]), encoding="utf-8")
    second = build(6)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    second.end()
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert [row[AXIS] for row in table(tmp_path / "metrics.csv")] == [*"112233445566"]


def test_a_name_that_is_given_twice_builds_one_tracker(tmp_path):
    trainer = train(tmp_path, report_to=["jsonl", "jsonl"])
    trainer.train()
    trainer.end()
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4]


@pytest.mark.parametrize("given", [JsonLines, [JsonLines()]])
def test_a_callback_in_report_to_is_refused_with_its_place(tmp_path, given):
    with pytest.raises(ArgumentError, match=r"`report_to` is .*Pass the callback to the Trainer: `callbacks="):
        TrainingArguments(str(tmp_path), report_to=given)
