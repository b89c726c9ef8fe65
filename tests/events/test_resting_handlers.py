"""Handlers that rest: a callback with nothing to do at a frequent event takes no time there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.data import points
from support.trainers import regression_trainer
from trainbus import Callback, Progress
from trainbus.callbacks.stopping.stop_on_signal import StopOnSignal


class Counting(Callback):
    """Counts the batches of evaluations. It rests if it is told so."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_prediction_step(self) -> None:
        self.seen.append("batch")


def called_at_prediction_step(trainer: Any) -> list[str]:
    """Return the ids of the callbacks whose handlers the last announcement of `on_prediction_step` called."""
    calls = trainer.bus.signals["on_prediction_step"].calls
    assert calls is not None
    return [each.owner_id for each in calls]


def test_a_resting_handler_is_left_out_and_keeps_its_place(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    trainer = regression_trainer(tmp_path, eval_dataset=points(8), callbacks=[first, second])
    channel = trainer.bus.signals["on_prediction_step"]
    trainer.evaluate()
    order = called_at_prediction_step(trainer)
    channel.rest(first, Counting.on_prediction_step, True)
    channel.rest(first, Counting.on_prediction_step, True)
    trainer.evaluate()
    assert (len(first.seen), len(second.seen)) == (1, 2)
    channel.rest(first, Counting.on_prediction_step, False)
    trainer.evaluate()
    assert (len(first.seen), len(second.seen)) == (2, 3)
    assert called_at_prediction_step(trainer) == order


def test_an_evaluation_without_a_bar_calls_no_handler_for_its_batches(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, args={"disable_tqdm": True}, eval_dataset=points(8))
    trainer.evaluate()
    assert called_at_prediction_step(trainer) == []


@pytest.mark.parametrize("kind", [Progress, StopOnSignal])
def test_an_override_is_called_in_each_evaluation(kind: type[Callback], tmp_path: Path) -> None:
    seen = []

    class Own(kind):  # type: ignore[misc, valid-type]
        def on_prediction_step(self) -> None:
            seen.append("batch")

    trainer = regression_trainer(tmp_path, args={"disable_tqdm": True}, eval_dataset=points(17))
    trainer.remove_callback(kind)
    trainer.add_callback(Own())
    trainer.evaluate()
    assert len(seen) == 3  # batches of 8


@pytest.mark.parametrize("kind", [Progress, StopOnSignal])
def test_a_handler_of_an_instance_is_called_in_each_evaluation(kind: type[Callback], tmp_path: Path) -> None:
    seen: list[str] = []
    callback = kind()
    callback.on_prediction_step = lambda: seen.append("batch")  # type: ignore[method-assign, assignment]
    trainer = regression_trainer(tmp_path, args={"disable_tqdm": True}, eval_dataset=points(17))
    trainer.remove_callback(kind)
    trainer.add_callback(callback)
    trainer.evaluate()
    assert len(seen) == 3


def test_after_an_evaluation_a_training_still_stops_in_its_evaluation(tmp_path: Path) -> None:
    args = {"eval_strategy": "steps", "eval_steps": 2, "disable_tqdm": True, "per_device_eval_batch_size": 1}
    trainer = regression_trainer(tmp_path, args=args, eval_dataset=points(50))
    trainer.evaluate()
    batches = []

    def interrupt() -> None:
        if trainer.run.mode == "train":
            batches.append(trainer.run.evaluation.batch_number)
            if len(batches) == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    trainer.on("on_prediction_step", interrupt)
    with pytest.raises(SystemExit):
        trainer.train()
    assert 3 <= len(batches) < 10
