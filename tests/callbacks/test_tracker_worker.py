"""The worker of trackers: no row is lost while the process lives and the service comes back."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

import pytest

from trainbus.callbacks.base import tracker_worker
from trainbus.callbacks.base.tracker_worker import TrackerWorker


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(tracker_worker, "FIRST_PAUSE", 0.001)


class Service:
    """A service that fails on request, and what it received."""

    def __init__(self, refuses=()):
        self.down, self.refuses, self.received, self.attempts = True, refuses, [], 0
        self.asked = threading.Condition()

    def open(self):
        self._attempt()

    def write(self, row):
        self._attempt()
        if row in self.refuses:
            raise ValueError(f"bad row {row}")
        self.received.append(row)

    def _attempt(self):
        with self.asked:
            self.attempts += 1
            self.asked.notify_all()
        if self.down:
            raise ConnectionError("down")

    def wait_for_attempts(self, count):
        with self.asked:
            assert self.asked.wait_for(lambda: self.attempts >= count, 60)


def submit(worker, service, rows):
    for row in rows:
        worker.submit(lambda row=row: service.write(row), again=True)


def test_rows_wait_for_a_run_that_opens_late(caplog):
    service = Service()
    with caplog.at_level(logging.WARNING, "trainbus"):
        worker = TrackerWorker("acme", service.open)
        assert worker.wait_until_tried(60)
        submit(worker, service, range(3))
        service.wait_for_attempts(3)
        service.down = False
        assert worker.close(60)
    assert service.received == [0, 1, 2]
    assert worker.missed == 0
    assert caplog.text.count("the training continues") == 1
    assert "acme works now" in caplog.text


def test_the_end_tries_once_more_to_open_the_run():
    service, closed = Service(), []
    worker = TrackerWorker("acme", service.open)
    submit(worker, service, range(3))
    assert worker.close(60, lambda: closed.append(True))
    assert worker.missed == 3
    assert closed == [True]
    assert "down" in worker.reason


def test_a_failed_row_is_written_before_the_next_one():
    service = Service()
    service.down = False
    worker = TrackerWorker("acme", service.open)
    assert worker.drain(60)
    service.down = True
    submit(worker, service, range(2))
    service.wait_for_attempts(4)  # one that opened, row 0, row 0 again, row 1
    service.down = False
    submit(worker, service, [2])
    assert worker.close(60)
    assert service.received == [0, 1, 2]
    assert worker.missed == 0


def test_a_row_that_the_service_refuses_is_counted_and_the_others_are_written():
    service = Service(refuses=(1, 3))
    service.down = False
    worker = TrackerWorker("acme", service.open)
    submit(worker, service, range(6))
    assert worker.close(60)
    assert service.received == [0, 2, 4, 5]
    assert worker.missed == 2
    assert "bad row 1" in worker.reason


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_rows_that_wait_behind_a_refused_row_keep_their_order(refused):
    service = Service(refuses=(refused,))
    service.down = False
    worker = TrackerWorker("acme", service.open)
    assert worker.drain(60)
    service.down = True
    submit(worker, service, range(4))
    service.wait_for_attempts(5)
    service.down = False
    submit(worker, service, [4, 5])
    assert worker.close(60)
    assert service.received == [row for row in range(6) if row != refused]
    assert worker.missed == 1


def test_rows_wait_if_the_service_fails_again_soon():
    """The service accepts one row, fails for some rows, and then works. No row is lost."""
    service, works = Service(), iter([False] * 9 + [True] + [False] * 4 + [True] * 99)
    service.down = False
    worker = TrackerWorker("acme", service.open)
    assert worker.drain(60)

    def write(row):
        if not next(works):
            raise ConnectionError("down")
        service.received.append(row)

    for row in range(12):
        worker.submit(partial(write, row), again=True)
        assert worker.drain(60)
    assert worker.close(60)
    assert sorted(service.received) == [*range(12)]
    assert worker.missed == 0


def test_two_refused_rows_do_not_hold_up_later_rows():
    service = Service(refuses=(0, 1))
    service.down = False
    worker = TrackerWorker("acme", service.open)
    submit(worker, service, range(3))
    assert worker.drain(60)
    assert service.received == [2]
    assert worker.close(60)
    assert (service.received, worker.missed) == ([2], 2)


def test_the_end_of_the_run_writes_what_failed_before():
    service = Service()
    service.down = False
    worker = TrackerWorker("acme", service.open)
    assert worker.drain(60)
    service.down = True
    submit(worker, service, range(2))
    service.wait_for_attempts(4)
    service.down = False
    assert worker.close(60)
    assert service.received == [0, 1]


def test_other_calls_are_not_repeated():
    service = Service()
    service.down = False
    worker = TrackerWorker("acme", service.open)
    worker.submit(lambda: 1 / 0)
    submit(worker, service, [0])
    assert worker.close(60)
    assert (service.received, worker.missed) == ([0], 1)


def test_draining_waits_as_long_as_calls_are_made_and_gives_up_otherwise():
    worker = TrackerWorker("acme", lambda: None)
    hold = threading.Event()
    for _ in range(4):
        worker.submit(lambda: threading.Event().wait(0.3))
    assert worker.drain(1.0)
    worker.submit(lambda: hold.wait(60))
    assert not worker.drain(0.1)
    hold.set()
    assert worker.close(60)


def test_rows_beyond_the_limit_are_counted():
    hold = threading.Event()
    worker = TrackerWorker("acme", lambda: hold.wait(60), limit=2)
    for _ in range(5):
        worker.submit(lambda: None, again=True)
    hold.set()
    assert worker.close(60)
    assert worker.missed == 3
    assert "queue is full" in worker.reason


def test_calls_gather_while_the_thread_rests(monkeypatch):
    monkeypatch.setattr(tracker_worker, "GATHER", 600)
    made = []
    worker = TrackerWorker("acme", lambda: None)
    first = threading.Event()
    worker.submit(first.set)
    assert first.wait(60)  # the first call does not wait
    worker.submit(lambda: made.append(1))
    assert not made
    assert worker.drain(60)  # the caller does not wait for the rest of the pause
    assert made == [1]
    worker.submit(lambda: made.append(2))
    assert worker.close(60, lambda: made.append(3))
    assert made == [1, 2, 3]


def test_a_full_queue_does_not_keep_the_thread_from_its_last_call():
    gate, made = threading.Event(), []
    worker = TrackerWorker("acme", lambda: None, limit=2)
    worker.submit(gate.wait)
    assert worker.wait_until_tried(60)
    while worker.waiting:
        time.sleep(0.001)
    for index in range(3):
        worker.submit(lambda index=index: made.append(index))
    assert worker.missed == 1
    assert not worker.close(0.05, lambda: made.append("last"))
    gate.set()
    worker._thread.join(60)
    assert not worker._thread.is_alive()
    assert made == [0, 1, "last"]
