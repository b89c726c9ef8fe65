"""The rows of trackers: values as they are when they are logged, and steps with several rows after a resume."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from support.trainers import net_trainer
from trainbus.callbacks.base.row_tracker import TrackerSession
from trainbus.callbacks.base.service_tracker import ServiceSession, ServiceTracker, _kept
from trainbus.callbacks.base.tracker_rows import AXIS, TOTALS, rows_of_history, settled


class Service(ServiceSession):
    """A service that keeps its rows in a list."""

    def __init__(self, record):
        super().__init__("r")
        self.rows, self.record = [], record

    def log(self, values, step):
        self.rows.append((step, dict(values)))

    def repeat(self, rows):
        for step, row in rows:
            if not self.has(step):
                self.write(row, step)


def test_a_settled_value_does_not_change_with_the_object_of_the_program():
    total, array, counts = torch.zeros(()), np.zeros(3), {"seen": [0], "weights": torch.zeros(2, requires_grad=True)}
    logged = settled({"total": total, "array": array, "counts": counts, "one": torch.ones(1, 1), "flag": np.bool_(1)})
    total += 1
    array += 1
    counts["seen"][0] = 1
    counts["weights"].data += 1
    assert (logged["total"], logged["array"].tolist(), logged["one"], logged["flag"]) == (0.0, [0, 0, 0], 1.0, True)
    assert logged["counts"]["seen"] == [0]
    assert logged["counts"]["weights"].tolist() == [0, 0]


def test_the_history_divides_a_step_into_the_rows_that_were_logged():
    history = [{"a": 1, "step": 2}, {"a": 2, "step": 4}, {"a": 3, "step": 4}, {"b": 4, "step": 4}, {"a": 5, "step": 6}]
    rows = [(step, {key.removeprefix("train/"): row[key] for key in row if key != AXIS}) for step, row in
            rows_of_history(history, 4)]  # fmt: skip
    assert rows == [(2, {"a": 1}), (4, {"a": 2}), (4, {"a": 3, "b": 4})]


@pytest.mark.parametrize("arrived", range(6))
def test_a_service_receives_each_row_once_if_a_kill_divides_a_step(tmp_path, arrived):
    rows = [(step, {"x": number}) for number, step in enumerate([1, 2, 2, 2, 3])]
    record = tmp_path / "record"
    killed = Service(record)
    for step, row in rows[:arrived]:
        killed.write(row, step)
    resumed = Service(record)
    if arrived:
        resumed.continue_after(*_kept(record, -1))
    resumed.repeat(rows)
    assert killed.rows + resumed.rows == rows
    assert arrived == 5 or _kept(record, -1) == (3, 1)


def test_a_record_without_rows_skips_the_whole_step(tmp_path):
    (tmp_path / "record").write_text("2")  # of an earlier version
    session = TrackerSession()
    session.last_step, session.rows_of_last_step = _kept(tmp_path / "record", -1)
    assert [session.has(step) for step in (1, 2, 2, 3)] == [True, True, True, False]


class Acme(ServiceTracker):
    """A service that keeps the values that describe a run."""

    service = "Acme"
    told: ClassVar[dict[str, object]] = {}

    def open_session(self, opening, name, config):
        return AcmeSession(opening.run_id)


class AcmeSession(ServiceSession):
    def log(self, values, step):
        pass

    def tell(self, name, value):
        Acme.told[name] = value

    def close(self, outcome):
        pass


def test_a_session_without_a_step_does_not_replace_the_totals(tmp_path):
    def totals(steps):
        net_trainer(tmp_path, Acme(), max_steps=steps, save_steps=2).train(resume_from_checkpoint="auto")
        return {name: value for name, value in Acme.told.items() if name in TOTALS}

    Acme.told.clear()
    first = totals(4)
    assert first.keys() == set(TOTALS)
    assert first["train_steps_per_second"] > 0
    assert totals(4) == first
    third = totals(6)
    assert third["train_steps_per_second"] > 0
    assert third["train_runtime"] != first["train_runtime"]
