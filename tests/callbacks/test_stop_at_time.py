"""`StopAtTime` reserves the whole time until the last checkpoint is stored."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import names_in
from support.trainers import net_trainer
from trainbus import Checkpoint, Evaluate, RemoteStore, StopAtTime, at, every
from trainbus.engine.checkpoint.write.background_writer import BackgroundWriter

LIMIT, WRITE = 5.0, 0.5


@pytest.mark.parametrize("slow", [(Checkpoint, "_write"), (RemoteStore, "_copy")], ids=["write", "copy to a store"])
def test_the_time_of_a_thread_is_reserved(slow: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kind, name = slow
    work = getattr(kind, name)

    def slowly(*arguments: Any) -> Any:
        time.sleep(WRITE)
        return work(*arguments)

    monkeypatch.setattr(kind, name, slowly)
    saving, store = Checkpoint(at(2) | every(60)), RemoteStore(f"file://{tmp_path / 'store'}")
    run = net_trainer(tmp_path / "out", saving, store, StopAtTime(LIMIT), max_steps=100_000)
    began: list[float] = []
    run.on("on_setup", lambda: began.append(time.monotonic()))
    run.on("on_step_begin", lambda: time.sleep(0.02))
    run.train()
    assert time.monotonic() - began[0] < LIMIT
    last = f"checkpoint-{run.state.global_step}"
    assert last in names_in(tmp_path / "out")
    assert last in names_in(tmp_path / "store")


def test_the_running_write_counts_before_its_end():
    writer, opened = BackgroundWriter(), threading.Event()
    assert writer.slowest == 0.0
    writer.submit(opened.wait)
    try:
        time.sleep(0.05)
        assert writer.slowest >= 0.05
    finally:
        opened.set()
    writer.close()
    slowest = writer.slowest
    writer.submit(lambda: None)
    writer.close()
    assert writer.slowest == slowest >= 0.05


def test_an_evaluation_before_a_save_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]

    def takes(seconds: float) -> Any:
        return lambda: clock.__setitem__(0, clock[0] + seconds)

    run = net_trainer(tmp_path, Checkpoint(every(5)), Evaluate(every(5)), StopAtTime(4.2), max_steps=1000)
    monkeypatch.setattr(run.run, "clock", lambda: clock[0])
    run.on("on_step_begin", takes(0.1), id="step")
    run.on("on_evaluate_begin", takes(1.0), id="evaluation")
    run.train()
    assert 0 < run.state.global_step < 1000
    assert clock[0] < 4.2


def test_the_limit_includes_the_start_of_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    run = net_trainer(tmp_path, StopAtTime(10.0), max_steps=1000)
    monkeypatch.setattr(run.run, "clock", lambda: clock[0])
    run.on("on_setup", lambda: clock.__setitem__(0, clock[0] + 9.0), id="loads")
    run.on("on_step_begin", lambda: clock.__setitem__(0, clock[0] + 0.1), id="step")
    run.train()
    assert clock[0] < 10.0
