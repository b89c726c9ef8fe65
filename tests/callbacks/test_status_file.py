"""The status file says at each moment how the run does, and in the end how it ended."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from support.callbacks import Boom, stop_at
from support.checkpoints import files_up_to, names_in
from support.trainers import net_trainer
from trainbus import Checkpoint, StatusFile, TrainingArguments, at
from trainbus.callbacks.monitor.pace import pace_of
from trainbus.callbacks.monitor.status_file import exit_code, replace
from trainbus.engine.commands.main import main
from trainbus.engine.commands.status import read_status
from trainbus.events.errors import CheckpointError, RankFailure


def status_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run_status.json").read_text())


def run_of(folder: Path, *callbacks: Any) -> Any:
    return net_trainer(folder, StatusFile(), Checkpoint(at(2, 4)), *callbacks)


def test_the_status_of_a_live_run_names_its_newest_checkpoint(tmp_path: Path) -> None:
    built, seen = run_of(tmp_path), {}
    built.on("on_step_end", lambda state: seen.update({state.global_step: status_in(tmp_path)}))
    built.train()
    assert {entry["status"] for entry in seen.values()} == {"running"}
    assert (seen[1]["step"], seen[1]["resume_from"], seen[1]["exit_code"]) == (0, None, None)
    assert seen[6]["step"] == 4
    assert status_in(tmp_path)["resume_from"] == str(tmp_path / "checkpoint-4")


def test_the_status_of_a_finished_run_says_finished(tmp_path: Path) -> None:
    run_of(tmp_path).train()
    status = status_in(tmp_path)
    assert (status["status"], status["step"], status["exit_code"], status["world_size"]) == ("done", 6, 0, 1)
    assert status["pid"] == os.getpid()
    assert "all 6 steps are done" in status["reason"]


def test_a_run_that_a_callback_ends_is_stopped(tmp_path: Path) -> None:
    built = run_of(tmp_path)
    built.on("on_step_end", stop_at(3))
    built.train()
    status = status_in(tmp_path)
    assert (status["status"], status["step"], status["exit_code"]) == ("stopped", 3, 0)
    assert "stopped at step 3 by" in status["reason"]


def test_a_run_that_a_signal_ends_is_preempted(tmp_path: Path) -> None:
    built = run_of(tmp_path)
    built.on("on_gradients", lambda: os.kill(os.getpid(), signal.SIGTERM), once=3)
    with pytest.raises(SystemExit):
        built.train()
    status = status_in(tmp_path)
    assert (status["status"], status["exit_code"]) == ("preempted", 143)
    assert status["resume_from"] == str(tmp_path / "checkpoint-3")
    assert "SIGTERM" in status["reason"]


@pytest.mark.parametrize("event", ["on_epoch_end", "on_train_end"])
def test_a_signal_after_the_last_step_is_named_with_the_reason_of_the_end(event: str, tmp_path: Path) -> None:
    built = run_of(tmp_path)
    sent: list[int] = []

    def send() -> None:
        if built.state.global_step == 6:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGTERM)

    built.on(event, send)
    with pytest.raises(SystemExit):
        built.train()
    status = status_in(tmp_path)
    assert (status["status"], status["exit_code"], sent) == ("preempted", 143, [1])
    assert "SIGTERM" in status["reason"]
    assert "stopped at step 6 by" in status["reason"]


def test_a_partial_last_epoch_names_the_callback_that_stopped_it(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, StatusFile(), num_train_epochs=1, max_steps=-1)
    built.on("on_step_end", lambda control: control.request("epoch_stop", "enough"), once=2, id="Enough")
    built.train()
    status = status_in(tmp_path)
    assert (status["status"], status["step"]) == ("stopped", 2)
    assert status["reason"] == "epoch_stop at step 2 by Enough: enough"


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    def fail() -> None:
        raise Boom("no more")

    built = run_of(tmp_path)
    built.on("on_gradients", fail, once=3)
    with pytest.raises(Boom):
        built.train()
    status = status_in(tmp_path)
    assert (status["status"], status["exit_code"], status["reason"]) == ("failed", 1, "Boom: no more")
    assert status["resume_from"] == str(tmp_path / "checkpoint-2")


def test_a_run_that_finds_only_damaged_checkpoints_failed(tmp_path: Path) -> None:
    run_of(tmp_path).train()
    assert status_in(tmp_path)["status"] == "done"
    for weights in tmp_path.glob("checkpoint-*/model.safetensors"):
        weights.write_bytes(b"")
    with pytest.raises(CheckpointError):
        run_of(tmp_path).train(resume_from_checkpoint="auto")
    status = status_in(tmp_path)
    assert (status["status"], status["exit_code"]) == ("failed", 1)
    assert "no good checkpoint" in status["reason"]


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        ({"status": "failed", "reason": "ValueError: no rows", "time": math.inf}, True),
        ({"status": "failed", "reason": "ValueError: an earlier run's", "time": 0.0}, False),
        ({"status": "failed", "reason": "RankFailure: rank 2 is gone", "time": math.inf}, False),
        ({"status": "running", "reason": "", "time": math.inf}, False),
        ({}, False),
    ],
)
def test_a_report_of_a_remote_failure_keeps_the_files_of_that_rank(
    there: dict[str, Any], kept: bool, tmp_path: Path
) -> None:
    def fail() -> None:
        (tmp_path / "run_status.json").write_text(json.dumps(there))
        raise RankFailure("Rank 1 failed")

    built = run_of(tmp_path)
    built.on("on_gradients", fail, once=3)
    with pytest.raises(RankFailure):
        built.train()
    status = status_in(tmp_path)
    assert status == there if kept else status["reason"] == "RankFailure: Rank 1 failed"


def test_an_evaluation_by_itself_is_no_run(tmp_path: Path) -> None:
    built = run_of(tmp_path)
    built.on("on_prediction_step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        built.evaluate()
    assert not (tmp_path / "run_status.json").exists()


def test_no_other_file_is_left(tmp_path: Path) -> None:
    run_of(tmp_path).train()
    assert names_in(tmp_path) == ["checkpoint-2", "checkpoint-4"]
    others = {path.name for path in tmp_path.iterdir()} - {*names_in(tmp_path)}
    assert others == {"goodput.jsonl", "run_status.json"}


@pytest.mark.parametrize(
    ("error", "code"),
    [(SystemExit(), 0), (SystemExit(3), 3), (SystemExit("no"), 1), (KeyboardInterrupt(), 130), (ValueError(), 1)],
)
def test_the_exit_code_is_that_of_python(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_every_trainer_writes_its_status(tmp_path: Path) -> None:
    assert StatusFile.from_arguments(TrainingArguments()) == StatusFile()
    net_trainer(tmp_path, save_strategy="no").train()
    assert status_in(tmp_path)["status"] == "done"


# Sessions of one run.

FIGURES = ("steps_per_second", "costs")


def session_of(folder: Path, *callbacks: Any, steps: int = 6, fails: bool = False, **options: Any) -> dict[str, Any]:
    """Train a session that resumes, and return its status."""
    built = net_trainer(folder, StatusFile(), Checkpoint(at(2, 4, 6)), *callbacks, max_steps=steps, **options)
    if fails:
        built.on("on_step_begin", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        built.train(resume_from_checkpoint="auto")
    return read_status(folder)


def test_the_status_has_the_speed_and_the_remaining_time_of_the_progress(tmp_path: Path, capsys: Any) -> None:
    built = net_trainer(tmp_path, StatusFile(), Checkpoint(at(6)), eval_strategy="steps", eval_steps=2, max_steps=400)
    built.on("on_evaluate_begin", lambda: time.sleep(0.3))
    found: list[Any] = []

    def look(run: Any) -> None:
        if run.state.global_step == 6:
            found.append((pace_of(run), status_in(tmp_path)))
            main(["status", str(tmp_path)])

    built.on("on_step_begin", look)
    built.on("on_step_end", stop_at(7))
    built.train()
    [(pace, status)] = found
    assert pace.rate > 3 * 6 / pace.seconds, "the evaluations take most of the time"
    assert status["steps_per_second"] == pytest.approx(pace.rate, rel=0.5)
    assert status["seconds_left"] == pytest.approx(pace.left, rel=0.2)
    shown = re.search(r"time left +about 0:(\d+):(\d+)", capsys.readouterr().out)
    assert shown is not None
    assert 60 * int(shown[1]) + int(shown[2]) == pytest.approx(pace.left, rel=0.2)


def test_a_session_without_a_step_keeps_the_figures_of_the_session_before_it(tmp_path: Path, capsys: Any) -> None:
    first = session_of(tmp_path, logging_steps=2)
    assert first["steps_in_session"] == 6
    assert first["steps_per_second"] > 0
    for _ in range(2):
        again = session_of(tmp_path, logging_steps=2)
        assert (again["status"], again["step"], again["steps_in_session"]) == ("done", 6, 0)
        assert {name: again[name] for name in FIGURES} == {name: first[name] for name in FIGURES}
        assert again["metrics"] == first["metrics"]
    main(["status", str(tmp_path)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("speed ", "time "))]
    assert len(lines) == 2
    assert all("in the last session that trained a step" in line for line in lines)


def test_a_session_that_fails_in_its_first_step_keeps_the_figures(tmp_path: Path) -> None:
    first = session_of(tmp_path, steps=4)
    failed = session_of(tmp_path, fails=True)
    assert (failed["status"], failed["step"]) == ("failed", 4)
    assert {name: failed[name] for name in FIGURES} == {name: first[name] for name in FIGURES}


def test_a_session_with_a_step_has_its_own_figures(tmp_path: Path) -> None:
    first = session_of(tmp_path, steps=4)
    second = session_of(tmp_path)
    assert (second["steps_in_session"], second["costs"]["steps"]) == (2, 2)
    assert second["steps_per_second"] != first["steps_per_second"]


def test_a_resumed_session_keeps_the_metrics_that_it_has_not_logged(tmp_path: Path) -> None:
    first = session_of(tmp_path, steps=4, logging_steps=1, eval_strategy="steps", eval_steps=2)["metrics"]
    second = session_of(tmp_path, logging_steps=1, eval_strategy="no")["metrics"]
    assert {name for name in first if name.startswith("eval_")} >= {"eval_loss", "eval_runtime"}
    kept = {name: value for name, value in first.items() if name.startswith("eval_")}
    assert {name: second[name] for name in kept} == kept
    assert second["epoch"] > first["epoch"]
    assert second["learning_rate"] != first["learning_rate"]


def test_the_checkpoint_supplies_metrics_that_the_file_lacks(tmp_path: Path) -> None:
    first = session_of(tmp_path / "a", steps=4, logging_steps=1, eval_strategy="steps", eval_steps=2)["metrics"]
    built = net_trainer(tmp_path / "b", StatusFile(), logging_steps=1, max_steps=6)
    built.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    assert status_in(tmp_path / "b")["metrics"]["eval_loss"] == first["eval_loss"]


def test_a_fresh_start_has_no_metrics_of_another_run(tmp_path: Path) -> None:
    session_of(tmp_path, steps=4, logging_steps=1, eval_strategy="steps", eval_steps=2)
    net_trainer(tmp_path, StatusFile(), logging_steps=1, max_steps=6).train()
    assert "eval_loss" not in status_in(tmp_path)["metrics"]


def test_a_fresh_start_forgets_the_figures_of_another_run(tmp_path: Path) -> None:
    run_of(tmp_path).train()
    built = run_of(tmp_path)
    built.on("on_step_begin", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        built.train()
    status = status_in(tmp_path)
    assert (status["steps_per_second"], status["costs"]["steps"]) == (None, 0)


# A full disk.


RUNNING = {"status": "running", "reason": "", "metrics": {}, "costs": {"parts": ["x" * 400]}, "decisions": ["y" * 400]}


def replaced_on_a_full_disk(path: Path, reason: str) -> dict[str, Any]:
    replace(path, RUNNING)
    size = path.stat().st_size
    with files_up_to(size):
        replace(path, {**RUNNING, "status": "failed", "reason": reason})
    assert path.stat().st_size == size
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("length", "left_out"), [(300, {"decisions": []}), (700, {"decisions": [], "costs": None})], ids=["one", "two"]
)
def test_a_full_disk_leaves_out_the_fewest_details(length: int, left_out: dict[str, Any], tmp_path: Path) -> None:
    reason = "r" * length
    found = replaced_on_a_full_disk(tmp_path / "status.json", reason)
    assert found == {**RUNNING, "status": "failed", "reason": reason, **left_out}


def test_a_full_disk_cuts_a_long_reason(tmp_path: Path) -> None:
    found = replaced_on_a_full_disk(tmp_path / "status.json", "Fehler in \N{SNOWMAN}: " + 300 * "\N{SNOWMAN}")
    assert found["status"] == "failed"
    assert found["reason"].startswith("Fehler in \N{SNOWMAN}")
    assert found["reason"].endswith("\N{SNOWMAN}...")


def test_a_new_status_file_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with files_up_to(10), pytest.raises(OSError, match="File too large"):
        replace(tmp_path / "status.json", RUNNING)
    assert list(tmp_path.iterdir()) == []


def test_only_a_full_disk_makes_the_file_be_overwritten_in_place(tmp_path: Path, monkeypatch: Any) -> None:
    replace(tmp_path / "status.json", RUNNING)

    def refuse(*args: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        replace(tmp_path / "status.json", {**RUNNING, "status": "failed"})
    assert json.loads((tmp_path / "status.json").read_text()) == RUNNING


def test_a_run_that_fails_on_a_full_disk_says_so(tmp_path: Path) -> None:
    built = run_of(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "run_status.json").stat().st_size, hard))
        raise Boom("no more " * 300)

    built.on("on_gradients", fill, once=3)
    try:
        with pytest.raises(Boom):
            built.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    status = status_in(tmp_path)
    assert (status["status"], status["exit_code"], status["step"]) == ("failed", 1, 2)
    assert status["reason"].startswith("Boom: no more no more")
    assert read_status(tmp_path)["decisions"] == []
