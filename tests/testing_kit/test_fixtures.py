"""The fixtures of the kit: a small run, a clock, a tracker, faults, processes and golden traces."""

from __future__ import annotations

import errno
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from trainbus import Checkpoint, EarlyStopping, Evaluate, Log, every
from trainbus.events import CheckpointError
from trainbus.testing import (
    FakeTracker,
    InjectedFault,
    VirtualClock,
    assert_golden_trace,
    full_disk,
    in_processes,
    kill_at,
    lose_rank_at,
    raise_at,
    signal_at,
    tiny_run,
    tiny_trainer,
)


def test_a_tiny_run_returns_what_happened(tmp_path: Path) -> None:
    run = tiny_run(EarlyStopping(patience=1, threshold=100.0), folder=tmp_path)
    assert run.steps == 4
    assert run.events[-1] == "on_close"
    assert [row["step"] for row in run.metrics] == [2, 4]
    assert run.requests("training_stop", "EarlyStopping")[0][0] == 4
    assert run.weights.keys() == run.trainer.model.state_dict().keys()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]


def test_hours_pass_without_waiting(tmp_path: Path) -> None:
    began = time.perf_counter()
    with VirtualClock().running() as clock:
        trainer = tiny_trainer(tmp_path, Evaluate(every("10min")))
        clock.per_step(trainer, 300.0)
        trainer.train()
        time.sleep(3600)
        assert clock.seconds == 6 * 300 + 3600
    assert [row["step"] for row in trainer.state.log_history if "eval_loss" in row] == [2, 4, 6]
    assert time.perf_counter() - began < 3600


def test_the_clock_reads_exactly_the_seconds_that_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 12345.123456789)
    with VirtualClock().running() as clock:
        readings = []
        for _ in range(50):
            clock.advance(300.0)
            readings.append(time.monotonic())
    assert {after - before for before, after in pairwise(readings)} == {300.0}


def test_the_fake_tracker_keeps_rows_and_fails_when_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = FakeTracker(fails_at=(3,))
    run = tiny_run(tracker, folder=tmp_path)
    run.trainer.end()
    assert list(tracker.column("train/loss")) == [1, 2, 4, 5, 6]
    assert tracker.summary["train_loss"] > 0
    assert tracker.config["max_steps"] == 6
    assert [outcome.exit_code for outcome in tracker.outcomes] == [0]
    assert "does not answer at step 3" in caplog.text


@pytest.mark.parametrize("event", ["on_gradients", "on_evaluate_begin", "forward"])
def test_an_injected_error_ends_the_run_until_it_is_removed(tmp_path: Path, event: str) -> None:
    trainer = tiny_trainer(tmp_path, Evaluate(every(2)))
    undo = raise_at(3, event)(trainer)
    with pytest.raises(InjectedFault):
        trainer.train()
    assert trainer.state.global_step == 2
    undo()
    assert trainer.train().global_step == 6


def test_a_signal_stops_the_run_after_its_step(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, Checkpoint(every(100)))
    signal_at(3, signal.SIGTERM)(trainer)
    with pytest.raises(SystemExit) as stopped:
        trainer.train()
    assert stopped.value.code == 143
    assert trainer.state.global_step == 3


def test_a_full_disk_fails_the_save_and_no_other_folder(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "full", Checkpoint(every(2)))
    with full_disk(tmp_path / "full"), pytest.raises((OSError, CheckpointError)) as failed:
        trainer.train()
    chain = [failed.value, failed.value.__cause__, failed.value.__context__]
    assert errno.ENOSPC in [getattr(error, "errno", None) for error in chain] or "No space left" in str(failed.value)
    with full_disk(tmp_path / "full"):
        (tmp_path / "other").write_text("works")
        (tmp_path / "full2").mkdir()  # a path that begins with the same text
        (tmp_path / "full2" / "file").write_text("works")
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "full" / "file").write_text("fails")


def test_a_full_disk_fails_native_writers(tmp_path: Path) -> None:
    full, tensors = tmp_path / "full", {"weight": torch.ones(2)}
    full.mkdir()
    with full_disk(full):
        with pytest.raises(RuntimeError, match="unexpected pos"):
            torch.save(tensors, full / "a.pt")
        with pytest.raises(SafetensorError, match="No space left on device"):
            save_file(tensors, full / "a.safetensors")
        torch.save(tensors, tmp_path / "a.pt")
        save_file(tensors, tmp_path / "a.safetensors")
    torch.save(tensors, full / "a.pt")
    save_file(tensors, full / "a.safetensors")


def test_a_killed_process_leaves_its_checkpoints(tmp_path: Path) -> None:
    def train(rank: int) -> None:
        trainer = tiny_trainer(tmp_path, Checkpoint(every(1)), Log(every(1)))
        kill_at(4)(trainer)
        trainer.train()

    (ended,) = in_processes(train, count=1)
    assert ended.exit_code == -signal.SIGKILL
    assert list(tmp_path.glob("checkpoint-*"))
    assert tiny_run(folder=tmp_path, resume_from_checkpoint=True).steps == 6


def test_processes_return_values_and_errors() -> None:
    def work(rank: int) -> int:
        if rank == 1:
            raise ValueError("not today")
        return 7

    first, second = in_processes(work)
    assert (first.value, first.exit_code, first.error) == (7, 0, "")
    assert (second.value, second.error) == (None, "ValueError: not today")
    assert "in work" in second.trace


def test_the_timeout_counts_once_for_all_processes() -> None:
    def work(rank: int) -> str:
        if rank != 1:
            time.sleep(100)
        return "x" * 1_000_000  # more than a pipe holds, so the process waits until its answer is read

    began = time.monotonic()
    ended = in_processes(work, 5, timeout=2)
    assert time.monotonic() - began < 7  # a limit for each process would end after more than 8 seconds
    assert [(len(end.value or ""), end.exit_code) for end in ended] == [(0, None), (1_000_000, 0), *[(0, None)] * 3]


@pytest.mark.slow
def test_a_lost_rank_ends_the_other(tmp_path: Path) -> None:
    from trainbus import DDP

    def train(rank: int) -> int:
        trainer = tiny_trainer(tmp_path, DDP(), ddp_timeout=20)
        lose_rank_at(3)(trainer)
        trainer.train()
        return trainer.state.global_step

    first, second = in_processes(train, timeout=100)
    assert second.exit_code == -signal.SIGKILL
    assert "RankFailure" in first.error


def test_a_golden_trace_is_written_once_and_compared_later(tmp_path: Path, monkeypatch: Any) -> None:
    trace = tiny_run(folder=tmp_path / "run").trace
    path = tmp_path / "golden" / "usual.trace"
    with pytest.raises(AssertionError, match=r"There is no golden trace .* UPDATE_GOLDEN=1"):
        assert_golden_trace(trace, path)
    monkeypatch.setenv("UPDATE_GOLDEN", "1")
    assert_golden_trace(trace, path)
    monkeypatch.delenv("UPDATE_GOLDEN")
    assert_golden_trace(trace, path)
    other = tiny_run(folder=tmp_path / "other", max_steps=5).trace
    with pytest.raises(AssertionError, match=r"(?s)announces other events.*-    6"):
        assert_golden_trace(other, path)
