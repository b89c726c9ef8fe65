"""A service that never answers, or answers slowly, holds the training no longer than the deadline of the tracker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.trainers import net_trainer
from trainbus.callbacks.base.row_tracker import Opening, Outcome
from trainbus.callbacks.base.service_tracker import ServiceSession, ServiceTracker
from trainbus.callbacks.base.tracker_worker import TrackerWorker
from trainbus.events import ArgumentError

ANSWERS = threading.Event()
"""Set when a test ends, so that the blocked threads end."""


@pytest.fixture(autouse=True)
def answers() -> Iterator[None]:
    ANSWERS.clear()
    yield
    ANSWERS.set()


class Blocked(ServiceSession):
    """A session whose calls never return, or take `pause` seconds."""

    def __init__(self, run_id: str, blocks: str) -> None:
        super().__init__(run_id)
        self.blocks = blocks

    def _call(self, name: str) -> None:
        if name == self.blocks:
            ANSWERS.wait(300)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._call("log")

    def tell(self, name: str, value: Any) -> None:
        self._call("tell")

    def close(self, outcome: Outcome) -> None:
        self._call("close")


@dataclass
class Hole(ServiceTracker):
    """A tracker of a service that does not answer one kind of call. It measures its handlers."""

    service: ClassVar[str] = "Hole"
    blocks: str = field(default="open", kw_only=True)
    seconds: dict[str, float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        if self.blocks == "open":
            ANSWERS.wait(300)
        return Blocked(opening.run_id, self.blocks)


def timed(name: str) -> Any:
    def handler(self: Hole, **values: Any) -> None:
        began = time.monotonic()
        getattr(ServiceTracker, name)(self, **{key: values[key] for key in WANTED[name]})
        self.seconds[name] = max(self.seconds.get(name, 0.0), time.monotonic() - began)

    return handler


WANTED = {
    **{"on_train_begin": ("run",), "on_log": ("run", "state", "logs"), "on_step_end": ("run", "state", "control")},
    **{"on_train_end": ("run", "control"), "on_close": (), "on_end": ()},
}
for _name in WANTED:
    setattr(Hole, _name, timed(_name))


@pytest.mark.parametrize("blocks", ["open", "log", "tell", "close"])
def test_no_handler_waits_longer_than_the_deadline(blocks: str, tmp_path: Path, caplog: Any) -> None:
    tracker = Hole(blocks=blocks, deadline=0.3)
    trainer = net_trainer(tmp_path, tracker, logging_steps=1, max_steps=4)
    trainer.train()
    trainer.end()
    assert trainer.state.global_step == 4
    assert tracker.seconds.keys() == WANTED.keys()
    assert max(tracker.seconds.values()) < 0.3 + 2.0, tracker.seconds  # 2 s for a machine that does much else
    waited = {name for name, seconds in tracker.seconds.items() if seconds >= 0.3}
    assert waited == {"open": {"on_train_begin", "on_end"}, "close": {"on_end"}}.get(blocks, {"on_close", "on_end"})
    assert "it did not finish within 0.3 s" in caplog.text


def test_a_drain_ends_at_its_longest_time_although_calls_are_made() -> None:
    worker = TrackerWorker("slow", lambda: None)
    for _ in range(200):
        worker.submit(lambda: time.sleep(0.02))
    began = time.monotonic()
    assert not worker.drain(timeout=60.0, longest=0.2)
    assert time.monotonic() - began < 2.0
    worker.close(0.0)


@pytest.mark.parametrize("deadline", [0, -1.0, float("nan")])
def test_a_deadline_is_a_positive_number(deadline: float, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Hole\(deadline=.*\): set a number of seconds above 0"):
        net_trainer(tmp_path, Hole(deadline=deadline))
