"""A warning with the stack, if a training makes no progress."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from support.data import net_samples
from support.trainers import net_trainer
from trainbus import Evaluate, TrainingArguments, WatchStalls, every
from trainbus.events import ArgumentError
from trainbus.events.timeline import DATA, EVALUATE


def wait_for_a_lock() -> None:
    time.sleep(0.7)


def test_a_stalled_step_is_named_with_its_stack(tmp_path, caplog):
    built = net_trainer(tmp_path, WatchStalls(0.2))
    built.on("on_step_end", wait_for_a_lock, once=3, id="Stuck")
    built.on("on_step_end", lambda: time.sleep(0.3), once=4)
    with caplog.at_level(logging.WARNING):
        built.train()
    told = [record.getMessage() for record in caplog.records if "no progress" in record.getMessage()]
    assert "Stuck.on_step_end" in told[0]
    assert "after step 3" in told[0]
    assert "in wait_for_a_lock" in told[0]
    assert 0.2 <= built.bus.timeline.stalled < 1.5
    assert any("The training continues" in record.getMessage() for record in caplog.records)
    assert not [thread for thread in threading.enumerate() if thread.name == "trainbus-stalls"]


STALL = 0.7


class SlowRow:
    """Rows of a dataset. The program waits for the row that is read at a certain place."""

    def __init__(self, rows, place):
        self.rows, self.place, self.taken = rows, place, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.taken == self.place:
            time.sleep(STALL)
        self.taken += 1
        return self.rows[index]


def wait_once():
    left = [STALL]
    return lambda: time.sleep(left.pop()) if left else None


@pytest.mark.parametrize("batch", [2, 4, 5])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_stalled_loader_is_a_wait_for_data(tmp_path, caplog, batch, accumulated):
    """In any step, for its first batch or a later one. The goodput counts the wait once."""
    rows = SlowRow(net_samples(96), place=4 * batch)
    options = {"gradient_accumulation_steps": accumulated, "max_steps": 12}
    built = net_trainer(tmp_path, WatchStalls(0.2), train_dataset=rows, **options)
    built.train()
    assert "Its activity: wait for data." in caplog.text
    timeline = built.bus.timeline
    assert timeline.stalled == 0.0
    assert timeline.sums().parts[DATA] * 1e-9 >= STALL


@pytest.mark.parametrize("event", ["on_prediction_step", "the model", "on_evaluate_begin"])
def test_a_stall_in_an_evaluation_counts_for_the_evaluation(tmp_path, caplog, event):
    built = net_trainer(tmp_path, WatchStalls(0.2), Evaluate(every(3)))
    if event == "the model":
        wait = wait_once()
        built.model.register_forward_pre_hook(lambda module, inputs: None if module.training else wait())
    else:
        built.on(event, wait_once(), id="Stuck")
    built.train()
    name = "evaluate" if event == "the model" else f"Stuck.{event}"
    assert f"Its activity: {name}." in caplog.text
    assert built.bus.timeline.stalled == 0.0
    assert built.bus.timeline.sums().parts[EVALUATE] * 1e-9 >= STALL


def test_a_training_with_progress_is_not_warned_of(tmp_path, caplog):
    # Six steps take longer than the limit together. Each leaves a busy machine more than a second.
    built = net_trainer(tmp_path, WatchStalls(1.5))
    built.on("on_step_end", lambda: time.sleep(0.3))
    with caplog.at_level(logging.WARNING):
        built.train()
    assert "no progress" not in caplog.text


def test_the_argument_sets_the_time(tmp_path):
    assert WatchStalls.from_arguments(TrainingArguments(str(tmp_path))) == WatchStalls(600.0)
    assert WatchStalls.from_arguments(TrainingArguments(str(tmp_path), stall_after=None)) is None
    with pytest.raises(ArgumentError, match="stall_after"):
        TrainingArguments(str(tmp_path), stall_after=0)
    with pytest.raises(ArgumentError, match="above 0"):
        WatchStalls(0)
