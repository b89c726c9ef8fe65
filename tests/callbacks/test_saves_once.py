"""A signal or a time limit in any event of a step: the step is saved once, and the resumed run equals the whole run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from support.data import net_samples
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import StopAtTime, Trainer, default_data_collator
from trainbus.events.errors import CheckpointError
from trainbus.testing.tiny import timeless

STRATEGIES = [(save, evaluate) for save in ("steps", "epoch", "best") for evaluate in ("steps", "epoch")]
STEPS = [(10, 4), (10, 6), (6, 6), (8, 8)]
"""The steps of the run, and the step of the signal: the end of an epoch, a step inside of one, and two last steps."""
EVENTS = ("on_loss", "on_log", "on_prediction_step", "on_evaluate")
NESTED = "an evaluation in on_evaluate"
CASES = [
    (*strategies, *steps, event)
    for strategies in STRATEGIES
    for steps in STEPS
    for event in (*EVENTS, NESTED)
    if strategies[1] == "steps" or steps != (10, 6) or event in ("on_loss", "on_log")  # else there is no evaluation
]


def noisy(features: list[Any]) -> Any:
    batch = default_data_collator(features)
    batch["x"] = batch["x"] + torch.rand(())
    return batch


def trainer_of(folder: Path, save: str, evaluate: str, steps: int, *callbacks: Any, **options: Any) -> Trainer:
    """Build a trainer with epochs of 4 steps."""
    every = {"save_steps": 4, "eval_steps": 2, "logging_steps": 2, "metric_for_best_model": "eval_loss"}
    strategies = {"save_strategy": save, "eval_strategy": evaluate, "per_device_eval_batch_size": 2}
    data = {"eval_dataset": net_samples(8, seed=1), "data_collator": noisy}
    return net_trainer(folder, *callbacks, max_steps=steps, **every, **strategies, **data, **options)


def saves_of(trainer: Trainer) -> list[int]:
    saves: list[int] = []
    trainer.on("on_save_begin", lambda state: saves.append(state.global_step), id="saves")
    return saves


def at_step(trainer: Trainer, event: str, step: int, action: Callable[[], None]) -> None:
    """Call `action` once, in the first event of this kind in a step."""
    calls: list[int] = []

    def call(run: Any) -> None:
        if run.state.global_step + (event == "on_loss") == step and not calls:
            calls.append(step)
            action()

    trainer.on(event, call, id="at step")


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def evaluates_once(trainer: Trainer, step: int, before: Callable[[], None] = lambda: None) -> None:
    """Call `before` and evaluate other rows in `on_evaluate`, once."""
    rows = net_samples(4, seed=2)

    def evaluate() -> None:
        before()
        trainer.run.evaluate(eval_dataset=rows, metric_key_prefix="own")

    at_step(trainer, "on_evaluate", step, evaluate)


def outcome(trainer: Trainer) -> tuple[Any, Any]:
    logs = [timeless(entry) for entry in trainer.state.log_history if "train_runtime" not in entry]
    # A repeated evaluation may follow the log of its step, which it precedes in an uninterrupted run.
    return weights(trainer.model), sorted(logs, key=lambda entry: (entry["step"], sorted(entry)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def outcome_of(save: str, evaluate: str, steps: int, nested: int = 0) -> tuple[Any, Any]:
        trainer = trainer_of(tmp_path_factory.mktemp("whole"), save, evaluate, steps)
        if nested:
            evaluates_once(trainer, nested)
        trainer.train()
        return outcome(trainer)

    return outcome_of


def assert_resumes(folder: Path, expected: tuple[Any, Any], *kind: Any, nested: int = 0) -> None:
    resumed = trainer_of(folder, *kind)
    if nested:
        evaluates_once(resumed, nested)
    resumed.train(resume_from_checkpoint=True)
    found = outcome(resumed)
    assert same_weights(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.parametrize(("save", "evaluate", "steps", "step", "event"), CASES)
def test_after_a_signal_each_step_is_saved_once(
    save: str, evaluate: str, steps: int, step: int, event: str, tmp_path: Path, whole: Any
) -> None:
    trainer = trainer_of(tmp_path, save, evaluate, steps)
    saves, nested = saves_of(trainer), step if event == NESTED else 0
    if nested:
        evaluates_once(trainer, step, before=terminate)
    else:
        at_step(trainer, event, step, terminate)
    with pytest.raises(SystemExit):
        trainer.train()
    assert len(set(saves)) == len(saves)
    assert trainer.state.global_step == saves[-1]
    assert_resumes(tmp_path, whole(save, evaluate, steps, nested), save, evaluate, steps, nested=nested)


@pytest.mark.parametrize("step", [6, 8])
@pytest.mark.parametrize(("save", "evaluate"), STRATEGIES)
def test_a_time_limit_at_the_last_step_saves_it_once(save: str, evaluate: str, step: int, tmp_path: Path) -> None:
    limit = StopAtTime("1h", first_save=0)
    trainer = trainer_of(tmp_path, save, evaluate, step, limit)
    saves = saves_of(trainer)
    at_step(trainer, "on_loss", step, lambda: setattr(limit, "_end", 0.0))
    trainer.train()
    assert saves.count(step) == 1
    assert {entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry} >= {step}


def test_a_step_whose_save_failed_is_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tmp_path, "steps", "epoch", 10, on_save_error="warn")
    saves, fails = saves_of(trainer), iter([True])

    def write(run: Any, *rest: Any) -> None:
        if next(fails, False):
            raise CheckpointError("the disk is full")
        original(run, *rest)

    original = trainer.run.storage.write
    monkeypatch.setattr(trainer.run.storage, "write", write)
    at_step(trainer, "on_prediction_step", 4, terminate)
    with pytest.raises(SystemExit):
        trainer.train()
    assert saves == [4, 4]
    assert (tmp_path / "checkpoint-4").is_dir()
