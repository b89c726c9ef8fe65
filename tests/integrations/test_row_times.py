"""Rows that wait for a service keep the time at which they were logged."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tracker_files as read
from test_trackers import Case, build, enter_place, installed

SECONDS = 1.0
"""How long the opening of a run takes."""


def wandb(folder: Path) -> dict[int, float]:
    return {step: row["_timestamp"] for step, row in read.wandb(folder)}


def tensorboard(folder: Path) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "out" / "runs")).Reload().Scalars("train/loss")
    return {event.step: event.wall_time for event in events}


def mlflow(folder: Path) -> dict[int, float]:
    [file] = (folder / "mlruns").glob("*/*/metrics/loss")
    points = [line.split() for line in file.read_text().splitlines()]
    return {int(step): int(milliseconds) / 1000 for milliseconds, _, step in points}


@pytest.mark.parametrize(
    ("name", "package", "times", "options"),
    [
        ("TensorBoard", "tensorboard", tensorboard, {}),
        ("MLflow", "mlflow", mlflow, {}),
        ("Wandb", "wandb", wandb, {"project": "demo", "mode": "offline"}),
    ],
)
def test_a_row_that_waits_for_the_service_has_the_time_at_which_it_was_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    times: Callable[[Path], dict[int, float]],
    options: dict[str, Any],
) -> None:
    case = Case(name, lambda folder: [], package, {**options, "deadline": 0.05})
    installed(case)
    enter_place(monkeypatch, tmp_path)
    trainer = build(case, tmp_path, save_strategy="no")
    tracker = next(callback for callback in trainer.bus.subscribers.values() if type(callback).__name__ == name)
    connect, logged = tracker.connect, {}

    def connect_slowly(*given: Any) -> Callable[[], Any]:
        opens = connect(*given)
        return lambda: (time.sleep(SECONDS), opens())[1]

    monkeypatch.setattr(tracker, "connect", connect_slowly)
    trainer.on("on_step_begin", lambda state: logged.setdefault(state.global_step + 1, [time.time()]))
    trainer.on("on_step_end", lambda state: logged[state.global_step].append(time.time()))
    trainer.on("on_train_end", lambda: setattr(tracker, "deadline", 60.0))  # the start does not wait, the end does
    trainer.train()
    trainer.end()
    found = times(tmp_path)
    assert list(found) == [2, 4, 6, 8]
    for step, seconds in found.items():
        began = logged[step][0]
        assert began - 0.002 <= seconds < began + SECONDS / 2, "the row has the time at which the service received it"
