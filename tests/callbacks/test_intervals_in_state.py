"""A handler that sets an interval in the state changes when the run logs, evaluates and saves, as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from support.data import points
from support.outcomes import history, saved_steps
from support.trainers import both, regression_trainer
from trainbus import Evaluate, Log, at_end, every
from trainbus.events.errors import ArgumentError

ARGS = {
    **{"per_device_train_batch_size": 4, "max_steps": 12, "learning_rate": 0.01, "eval_strategy": "steps"},
    **{"logging_steps": 2, "eval_steps": 4, "save_steps": 3, "per_device_eval_batch_size": 4},
}
CHANGES = [("logging_steps", 3), ("logging_steps", 1), ("eval_steps", 1), ("eval_steps", 6), ("save_steps", 2)]
EVENTS = ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_log", "on_evaluate"]


def setting(event: str, name: str, value: Any, step: int) -> Any:
    """Return a callback of transformers that sets an attribute of the state in an event of a step."""

    def handler(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            setattr(state, name, value)

    return type("Sets", (transformers.TrainerCallback,), {event: handler})()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("name", "value"), CHANGES, ids=str)
@pytest.mark.parametrize(
    "extra", [{}, {"eval_delay": 5, "logging_first_step": True}, {"eval_strategy": "epoch"}], ids=str
)
def test_interval_is_that_of_transformers(event: str, name: str, value: int, extra: Any, tmp_path: Path) -> None:
    step = 0 if event in ("on_train_begin", "on_epoch_begin") else 4
    (theirs, _), (ours, _) = both(
        tmp_path,
        {**ARGS, **extra},
        train_dataset=points(24),
        eval_dataset=points(6),
        model=lambda: regression_trainer(tmp_path).model,
        callbacks=lambda library: [setting(event, name, value, step)],
    )
    last = ours.state.max_steps  # only trainbus logs the last steps without a request
    logs = [[entry for entry in history(each) if entry["step"] < last] for each in (theirs, ours)]
    assert logs[0] == logs[1]
    assert saved_steps(ours.args.output_dir) == saved_steps(theirs.args.output_dir)


def test_next_training_has_the_interval_of_the_arguments(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, args={"max_steps": 6, "logging_strategy": "steps", "logging_steps": 3})
    off = trainer.on("on_train_begin", lambda state: setattr(state, "logging_steps", 1))
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    off()
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [3, 6]


def test_additional_callback_keeps_its_interval(tmp_path: Path) -> None:
    trainer = regression_trainer(
        tmp_path,
        args={"max_steps": 6, "logging_strategy": "steps", "logging_steps": 2},
        eval_dataset=points(4),
        callbacks=[Log(every(3), prefix="rare_"), Evaluate(at_end())],
    )
    trainer.on("on_train_begin", lambda state: (setattr(state, "logging_steps", 4), setattr(state, "eval_steps", 1)))
    trainer.train()
    log = trainer.state.log_history
    assert [entry["step"] for entry in log if "loss" in entry] == [4, 6]
    assert [entry["step"] for entry in log if "rare_loss" in entry] == [3, 6]
    assert [entry["step"] for entry in log if "eval_loss" in entry] == [6]


@pytest.mark.parametrize("value", [0, -1, None, "often"])
def test_interval_that_cannot_be_is_an_error(value: Any, tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, args={"max_steps": 6, "logging_strategy": "steps"})
    trainer.on("on_train_begin", lambda state: setattr(state, "logging_steps", value))
    with pytest.raises(ArgumentError, match=r"A handler set `state.logging_steps` to"):
        trainer.train()
