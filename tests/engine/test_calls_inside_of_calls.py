"""A method of the Trainer that calls itself through a handler is an error with a remedy, not a RecursionError."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainbus
from support.data import points
from support.models import Regression
from trainbus.events import Event
from trainbus.events.errors import ArgumentError, HandlerError
from trainbus.events.stages import Stage

ROWS = points(8)


def build(folder: Path, kind: Any = trainbus.Trainer) -> Any:
    args = trainbus.TrainingArguments(
        str(folder),
        **{"max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no"},
        **{"use_cpu": True, "disable_tqdm": True, "report_to": "none"},
    )
    return kind(Regression(), args, train_dataset=ROWS, eval_dataset=ROWS)


def train(trainer: Any) -> None:
    trainer.train()


def evaluate(trainer: Any) -> None:
    trainer.evaluate()


def predict(trainer: Any) -> None:
    trainer.predict(ROWS)


def log(trainer: Any) -> None:
    trainer.log({"value": 1.0})


@pytest.mark.parametrize(
    ("session", "event"),
    [
        *((train, event) for event in ("on_setup", "on_train_begin", "on_step_end", "on_log", "on_train_end")),
        *((train, event) for event in ("on_prediction_step", "on_evaluate")),
        (evaluate, "on_evaluate"),
        (predict, "on_predict"),
    ],
)
def test_a_training_in_another_session_is_refused(session: Callable[[Any], None], event: str, tmp_path: Path) -> None:
    trainer = build(tmp_path)
    trainer.on(event, lambda: trainer.train())
    with pytest.raises(ArgumentError, match=rf"`train` cannot start a training during {session.__name__}\(\)\. .*Call"):
        session(trainer)
    assert trainer.run.mode == ""


RECURSIONS = [
    (train, "on_evaluate", evaluate, "An evaluation"),
    (train, "on_evaluate_begin", evaluate, "An evaluation"),
    (train, "on_log", evaluate, "An evaluation"),
    (train, "on_log", log, "A log"),
    (train, "on_prediction_step", predict, "A prediction"),
    (evaluate, "on_prediction_step", evaluate, "An evaluation"),
    (predict, "on_predict", predict, "A prediction"),
]


@pytest.mark.parametrize(("session", "event", "call", "named"), RECURSIONS)
def test_a_handler_that_calls_itself_again_and_again_is_refused(
    session: Callable[[Any], None], event: str, call: Callable[[Any], None], named: str, tmp_path: Path
) -> None:
    trainer = build(tmp_path)
    trainer.on(event, lambda: call(trainer))
    with pytest.raises(
        HandlerError, match=f"{named} runs inside of itself again and again.* Return from this function"
    ):
        session(trainer)
    assert trainer.run.mode == ""


class AnnouncesItself(trainbus.Callback):
    def on_log(self, run: Any) -> None:
        run.bus.announce("on_log")


class Ping(trainbus.Callback):
    events = (Event("on_ping", "A value is logged."),)

    def on_log(self, run: Any) -> None:
        run.bus.announce("on_ping")


class Pong(trainbus.Callback):
    def on_ping(self, run: Any) -> None:
        run.bus.announce("on_log")


@pytest.mark.parametrize(
    ("callbacks", "named"),
    [([AnnouncesItself], "AnnouncesItself announces 'on_log'"), ([Ping, Pong], "P[io]ng announces 'on_(ping|log)'")],
)
def test_an_announcement_inside_of_itself_without_end_is_refused(callbacks: Any, named: str, tmp_path: Path) -> None:
    trainer = build(tmp_path)
    for callback in callbacks:
        trainer.add_callback(callback())
    with pytest.raises(HandlerError, match=f"^{named} inside of 64 other announcements.* return from the handler") as e:
        trainer.train()
    assert len(getattr(e.value, "__notes__", [])) < 5
    assert trainer.run.control.speaking.depth == 0
    assert trainer.run.mode == ""


def test_announcements_of_several_threads_do_not_add_up(tmp_path: Path) -> None:
    trainer = build(tmp_path)
    inside, leave = threading.Event(), threading.Event()

    def handler(logs: dict[str, threading.Event]) -> None:
        logs["inside"].set()
        assert logs["leave"].wait(10)

    def begin(inside: threading.Event, leave: threading.Event) -> threading.Thread:
        logs = {"inside": inside, "leave": leave}
        thread = threading.Thread(target=trainer.run.bus.announce, args=("on_log",), kwargs={"logs": logs})
        thread.start()
        assert inside.wait(10)
        return thread

    trainer.on("on_log", handler, stage=Stage.PREPARE)
    first = begin(inside, leave)
    released = threading.Event()
    second = begin(threading.Event(), released)
    leave.set()
    first.join()  # the announcement that began first ends first
    released.set()
    second.join()
    assert trainer.run.control.speaking.depth == 0


class EvaluatesInLoop(trainbus.Trainer):
    """Calls `evaluate` in a method that `evaluate` calls."""

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        self.evaluate(ROWS)
        return super().evaluation_loop(*args, **options)


class EvaluatesInLog(trainbus.Trainer):
    """Calls `evaluate` in `log`, which `evaluate` calls."""

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.evaluate()


class EvaluatesInEvaluate(trainbus.Trainer):
    """Evaluates through a callback service in an override of `evaluate`."""

    def evaluate(self, *args: Any, **options: Any) -> Any:
        self.run.services.evaluate()
        return super().evaluate(*args, **options)


@pytest.mark.parametrize("kind", [EvaluatesInLoop, EvaluatesInLog, EvaluatesInEvaluate])
def test_an_override_that_calls_itself_again_and_again_is_refused(kind: Any, tmp_path: Path) -> None:
    trainer = build(tmp_path, kind)
    with pytest.raises(HandlerError, match="An evaluation runs inside of itself"):
        trainer.evaluate()


def test_metrics_that_evaluate_are_refused(tmp_path: Path) -> None:
    trainer = build(tmp_path)
    trainer.compute_metrics = lambda prediction: trainer.evaluate()
    with pytest.raises(HandlerError, match="An evaluation runs inside of itself"):
        trainer.train()


def test_evaluations_of_a_few_levels_are_allowed_and_the_trainer_works_after_an_error(tmp_path: Path) -> None:
    trainer, depth = build(tmp_path), [0]

    def deeper() -> None:
        depth[0] += 1
        if depth[0] < 4:
            trainer.evaluate(ROWS, metric_key_prefix=f"level{depth[0]}")

    trainer.on("on_evaluate", deeper)
    assert "eval_loss" in trainer.evaluate()
    assert depth == [4]
    broken = build(tmp_path)
    broken.on("on_log", lambda: broken.log({"value": 1.0}))
    for _ in range(2):
        with pytest.raises(HandlerError, match="A log runs inside of itself"):
            broken.log({"value": 1.0})
