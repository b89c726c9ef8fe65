"""Unmodified callbacks of transformers: what each call of a handler receives and does, under both trainers.

Twelve configurations. Each runs once under `transformers.Trainer` and once here, with a recorder and with callbacks of
transformers. The records must be equal, except for the rows of `docs/differences/` that `DOCUMENTED` names.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import DefaultFlowCallback, EarlyStoppingCallback, PrinterCallback, ProgressCallback

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import timeless
from support.trainers import hushed

EVENTS = [name for name in vars(transformers.TrainerCallback) if name.startswith("on_")]
FLAGS = ("should_log", "should_evaluate", "should_save", "should_epoch_stop", "should_training_stop")
STATE = [
    each.name
    for each in dataclasses.fields(transformers.TrainerState)
    if each.name not in ("stateful_callbacks", "log_history")
]
"""The fields of the state that are compared. `log_history` is compared as the logged values."""

ADDED = {"batch", "checkpoint", "grad_norm", "learning_rate", "loss", "outputs", "prediction", "run", "tokenizer"}
"""The keyword arguments that handlers receive here in addition."""


class Recorder(transformers.TrainerCallback):
    """Writes down each call: event, flags, state, and what the handler is given. It may set flags."""

    def __init__(self, actions: dict[tuple[str, int], str]) -> None:
        self.calls: list[dict[str, Any]] = []
        self.actions = actions


def _record(event: str) -> Callable[..., None]:
    def handler(self: Recorder, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        before = [flag for flag in FLAGS if getattr(control, flag)]
        if flag := self.actions.pop((event, state.global_step), None):
            setattr(control, flag, True)
        self.calls.append(
            {
                "event": event,
                "before": before,
                "after": [flag for flag in FLAGS if getattr(control, flag)],
                "state": {name: _plain(getattr(state, name)) for name in STATE},
                "logged": [timeless(entry) for entry in state.log_history],
                "given": {name: _kind(value) for name, value in sorted(kwargs.items())},
                "logs": timeless(kwargs["logs"]) if "logs" in kwargs else None,
                "metrics": timeless(kwargs["metrics"]) if "metrics" in kwargs else None,
                "args": type(args).__name__,
            }
        )

    return handler


for _event in EVENTS:
    setattr(Recorder, _event, _record(_event))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return Path(value).name
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def _kind(value: Any) -> str:
    """The class of a value. Wrappers of accelerate and loaders of trainbus count as the class that they derive from."""
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.utils.data.DataLoader)
    return next((kind.__name__ for kind in kinds if isinstance(value, kind)), type(value).__name__)


def loss_of(prediction: Any) -> dict[str, float]:
    return {"spread": float(prediction.predictions.std())}


EVERY_TWO = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
BEST = {**EVERY_TWO, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False}

CASES: dict[str, dict[str, Any]] = {
    "by epochs": {
        "args": dict.fromkeys(("logging_strategy", "eval_strategy", "save_strategy"), "epoch"),
        "callbacks": lambda: [PrinterCallback(), ProgressCallback()],
    },
    "by steps, first step logged": {
        "args": {**EVERY_TWO, "logging_steps": 3, "logging_first_step": True},
        "callbacks": lambda: [TensorBoardCallback()],
    },
    "nothing logged, evaluated or saved": {
        "args": {"logging_strategy": "no"},
        "callbacks": lambda: [DefaultFlowCallback()],
    },
    "accumulation that ends in the middle": {"args": {"gradient_accumulation_steps": 2, "logging_steps": 1}},
    "max_steps inside of an epoch": {"args": {"max_steps": 7, "logging_steps": 7}},
    "evaluation at the start": {"args": {"eval_on_start": True, "eval_strategy": "epoch", "logging_steps": 5}},
    "several evaluation sets": {"args": {"eval_strategy": "epoch"}, "sets": {"one": points(6, 1), "two": points(3, 2)}},
    "best model and early stopping": {"args": BEST, "callbacks": lambda: [EarlyStoppingCallback(1)]},
    "evaluation after a delay": {"args": {**EVERY_TWO, "eval_delay": 5}},
    "resumed from a checkpoint": {"args": {**EVERY_TWO, "logging_steps": 1}, "do": "resume"},
    "evaluate and predict alone": {"args": {}, "do": "alone"},
    "a callback that sets each flag": {
        "args": {"logging_steps": 100},
        "actions": {
            **{("on_step_end", 1): "should_log", ("on_step_begin", 2): "should_evaluate"},
            **{("on_substep_end", 1): "should_save", ("on_step_end", 4): "should_epoch_stop"},
            **{("on_optimizer_step", 5): "should_save", ("on_evaluate", 3): "should_save"},
            **{("on_pre_optimizer_step", 6): "should_log", ("on_log", 7): "should_evaluate"},
            ("on_step_end", 8): "should_training_stop",
        },
    },
}


def run_case(library: Any, folder: Path, case: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Run a configuration. Return the calls of the recorder, and the number of steps."""
    recorder = Recorder(dict(case.get("actions", {})))
    options = {
        **{"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.05, "save_strategy": "no"},
        **{"logging_steps": 5, "report_to": "none", "disable_tqdm": True, "use_cpu": True, "seed": 1},
        **case["args"],
    }
    folder = folder / library.__name__

    def build() -> Any:
        return library.Trainer(
            Regression(),
            library.TrainingArguments(str(folder), **options),
            train_dataset=points(21),
            eval_dataset=case.get("sets", points(6, 1)),
            compute_metrics=loss_of,
            callbacks=[recorder, *case.get("callbacks", list)()],
        )

    with hushed():
        trainer = build()
        if case.get("do") == "alone":
            trainer.evaluate()
            trainer.predict(points(6, 1))
        else:
            trainer.train()
        if case.get("do") == "resume":
            recorder.calls.clear()
            trainer = build()
            trainer.train(resume_from_checkpoint=str(folder / "checkpoint-6"))
    return recorder.calls, trainer.state.global_step


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A function that runs a configuration under both libraries, once."""
    known: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in known:
            folder = tmp_path_factory.mktemp("case")
            known[name] = [run_case(library, folder, CASES[name]) for library in (transformers, trainbus)]
        return known[name]

    return of


def comparable(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take the documented differences out of our record, each with a check that it is nothing else."""
    ours, end = [dict(call) for call in ours], theirs[-1]["state"]["max_steps"]
    resumed = theirs[1]["event"] == "on_train_begin" and theirs[1]["state"]["global_step"] > 0
    if [call["event"] for call in ours[:4]] == ["on_init_end", "on_train_begin", "on_epoch_begin", "on_epoch_end"]:
        del ours[2:4]  # a checkpoint of the last step of an epoch is from before the end of that epoch
    window = None
    if len(ours) == len(theirs) + 1:  # the rest of the last log window is logged
        at = next(n for n, call in enumerate(ours) if call["event"] == "on_log" and call["state"]["global_step"] == end)
        window = ours.pop(at)["logs"]
        assert set(window) == {"loss", "grad_norm", "learning_rate", "epoch"}
        for moment in ("before", "after"):
            ours[at - 1][moment] = [flag for flag in ours[at - 1][moment] if flag != "should_log"]
    for mine, other in zip(ours, theirs):
        mine["logged"] = [row for row in mine["logged"] if window is None or {**window, "step": end} != row]
        if resumed:  # it is the mean over all steps of the run here
            for call in (mine, other):
                call["logs"] = (
                    {**call["logs"], "train_loss": 0.0} if "train_loss" in (call["logs"] or {}) else call["logs"]
                )
                call["logged"] = [{**row, "train_loss": 0.0} if "train_loss" in row else row for row in call["logged"]]
        assert set(mine["given"]) - set(other["given"]) <= ADDED
        mine["given"] = {name: kind for name, kind in mine["given"].items() if name in other["given"]}
        if other["state"]["train_batch_size"] is None:  # it is known here before training begins
            mine["state"] = {**mine["state"], "train_batch_size": None}
    return ours


@pytest.mark.parametrize("name", CASES)
def test_each_call_of_a_handler_is_the_same_under_both_trainers(runs, name):
    (theirs, their_steps), (ours, our_steps) = runs(name)
    ours = comparable(ours, theirs)
    assert [call["event"] for call in ours] == [call["event"] for call in theirs]
    assert our_steps == their_steps
    for number, (mine, other) in enumerate(zip(ours, theirs)):
        assert mine == other, f"call {number}: {mine['event']} at step {mine['state']['global_step']}"


def test_the_configurations_reach_every_event_but_a_push(runs):
    seen = {call["event"] for name in CASES for call in runs(name)[1][0]}
    assert set(EVENTS) - seen == {"on_push_begin"}
