"""A warning with the stack, if a training makes no progress."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from support.trainers import net_trainer
from trainbus import TrainingArguments, WatchStalls
from trainbus.events import ArgumentError


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
