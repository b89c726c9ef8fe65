"""`StopAtTime` reserves the whole time until the last checkpoint is stored."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from support.checkpoints import names_in
from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, Evaluate, RemoteStore, StopAtTime, at, every
from trainbus.callbacks.stopping.stop_at_time import bytes_expected
from trainbus.engine.checkpoint.write.background_writer import BackgroundWriter
from trainbus.events import ArgumentError

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


class Transfer(Callback):
    """Copies or pushes each save on a pretended thread. The end of the training waits for the last transfer."""

    def __init__(self, takes: Any, measures: bool) -> None:
        self.takes, self.measures = takes, measures
        self.slowest_write, self.busy = 0.0, False

    def on_save(self) -> None:
        self.slowest_write = 60.0 if self.measures else 0.0

    def on_train_end(self) -> None:
        self.takes(60.0)


class Pushes(Callback):
    """A callback that pushes and does not measure its pushes."""

    def __init__(self, takes: Any) -> None:
        self.takes = takes

    def push_save(self, run: Any, checkpoint: Any) -> None:
        pass

    def on_train_end(self) -> None:
        self.takes(60.0)


@pytest.mark.parametrize(
    ("saves", "transfer", "before", "after"),
    [
        ({"save_steps": 100_000}, None, 1800, 3600),
        ({"save_strategy": "no"}, None, 3570, 3600),
        ({"save_steps": 100}, None, 3450, 3600),
        ({"save_steps": 100_000}, lambda takes: Transfer(takes, measures=True), 1200, 3600),
        ({"save_steps": 100}, lambda takes: Transfer(takes, measures=True), 3300, 3600),
        ({"save_steps": 100}, lambda takes: Transfer(takes, measures=False), 2700, 3600),
        ({"save_steps": 100}, Pushes, 2700, 3600),
        ({"save_strategy": "no"}, Pushes, 2700, 3600),
        ({"save_strategy": "no"}, lambda takes: Transfer(takes, measures=False), 3580, 3660),
    ],
)
def test_a_time_that_is_not_measured_is_reserved(
    saves: dict[str, Any],
    transfer: Any,
    before: float,
    after: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """A step takes 10 seconds, a save 50, and the last transfer 60. The run ends between `before` and `after`."""
    clock = [0.0]

    def takes(seconds: float) -> None:
        clock[0] += seconds

    callbacks = [] if transfer is None else [transfer(takes)]
    limit = StopAtTime("1h", first_save="6min")
    run = net_trainer(tmp_path, limit, *callbacks, max_steps=1_000_000, save_total_limit=1, **saves)
    monkeypatch.setattr(run.run, "clock", lambda: clock[0])
    run.on("on_step_begin", lambda: takes(10.0), id="step")
    run.on("on_save_begin", lambda: takes(50.0), id="save")
    run.train()
    assert before < clock[0] <= after
    assert saves == {"save_strategy": "no"} or f"checkpoint-{run.state.global_step}" in names_in(tmp_path)


def test_the_estimate_is_the_time_to_write_the_weights_and_the_states_of_adam():
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1000).requires_grad_(False))
    assert bytes_expected(model) == 4 * 1001 * 1000 * (3 + 1)


def test_the_first_save_may_take_no_time_or_a_text():
    StopAtTime("1h", first_save=0)
    with pytest.raises(ArgumentError, match=r"`first_save` is '5mins'; write seconds"):
        StopAtTime("1h", first_save="5mins")
