"""Flat arguments and a list of callbacks give the same events, weights and logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.data import points
from support.models import Regression
from support.outcomes import history, same_weights, weights
from trainbus import (
    Checkpoint,
    Evaluate,
    GradientCheckpointing,
    Keep,
    KeepBest,
    Log,
    MixedPrecision,
    Progress,
    Trainer,
    TrainingArguments,
    at,
    at_end,
    every,
    never,
)
from trainbus.events import ArgumentError, Callback, record

Listed = Callable[[], list[Callback]]

SAID_TWICE: dict[str, tuple[dict[str, Any], Listed]] = {
    "by steps, with a rest at the end": (
        {
            **{"logging_strategy": "steps", "logging_steps": 4},
            **{"eval_strategy": "steps", "eval_steps": 3},
            **{"save_strategy": "steps", "save_steps": 4},
        },
        lambda: [
            Log(every(4) | at_end(early=False)),
            Evaluate(every(3) | at_end(early=False)),
            Checkpoint(every(4) | at_end(early=False)),
        ],
    ),
    "by epochs, the best at the end": (
        {
            **{"logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch"},
            **{"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1},
        },
        lambda: [
            Log(every(1, "epoch")),
            Evaluate(every(1, "epoch")),
            Checkpoint(every(1, "epoch"), keep=Keep(total=1)),
            KeepBest("loss"),
        ],
    ),
    "by shares of the run, the first step and the start too": (
        {
            **{"logging_steps": 0.3, "logging_first_step": True, "save_strategy": "no"},
            **{"eval_strategy": "steps", "eval_steps": 0.5, "eval_on_start": True},
        },
        lambda: [
            Log(every(0.3) | at_end(early=False) | at(1)),
            Evaluate(every(0.5) | at_end(early=False), on_start=True),
            Checkpoint(never()),
        ],
    ),
    "in half precision, evaluated late": (
        {
            **{"bf16": True, "logging_steps": 2, "save_steps": 6},
            **{"eval_strategy": "epoch", "eval_delay": 2, "disable_tqdm": True},
        },
        lambda: [
            MixedPrecision("bf16"),
            Log(every(2) | at_end(early=False)),
            Evaluate(every(1, "epoch", after=2)),
            Checkpoint(every(6) | at_end(early=False)),
            Progress(bar=False),
        ],
    ),
    "checkpoints of the best only": (
        {
            **{"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "best"},
            **{"metric_for_best_model": "eval_loss", "greater_is_better": False},
        },
        lambda: [
            Log(every(1) | at_end(early=False)),
            Evaluate(every(3) | at_end(early=False)),
            Checkpoint(never()),
            KeepBest("eval_loss", mode="min", save=True, load_at_end=False),
        ],
    ),
}


def make(folder: Path, args: dict[str, Any], callbacks: list[Any]) -> Trainer:
    same = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.05}
    return Trainer(
        Regression(dropout=0.1),
        TrainingArguments(str(folder), **same, **args),
        train_dataset=points(20),
        eval_dataset=points(7, 1),
        callbacks=callbacks,
    )


@pytest.mark.parametrize(("args", "callbacks"), SAID_TWICE.values(), ids=SAID_TWICE)
def test_arguments_and_callbacks_give_the_same_run(args: dict[str, Any], callbacks: Listed, tmp_path: Path):
    traces, runs, saved = [], [], []
    for name, spelling in (("flat", (args, [])), ("composed", ({}, callbacks()))):
        run = make(tmp_path / name, *spelling)
        with record(run.bus) as trace:
            run.train()
        traces.append(trace)
        runs.append(run)
        saved.append(sorted(path.name for path in (tmp_path / name).glob("checkpoint-*")))
    assert traces[1].difference(traces[0]) == ""
    assert same_weights(weights(runs[1].model), weights(runs[0].model))
    assert history(runs[1]) == history(runs[0])
    assert len(history(runs[0])) > 2
    assert saved[1] == saved[0]
    for flag in ("log", "evaluate", "save"):
        asked = [[(entry.step, entry.action, entry.reason) for entry in run.control.ledger.of(flag)] for run in runs]
        assert asked[1] == asked[0]


def test_the_runs_that_are_compared_differ(tmp_path: Path):
    seen = set()
    for name, (args, _) in SAID_TWICE.items():
        run = make(tmp_path / name, args, [])
        with record(run.bus) as trace:
            run.train()
        seen.add(str(trace))
    assert len(seen) == len(SAID_TWICE)


# What is said twice.

CONTRADICTIONS: dict[str, tuple[dict[str, Any], Callback, list[str]]] = {
    "logging": ({"logging_steps": 10}, Log(every(5)), ["Log(trigger=every(5)", "logging_steps=10", "every(10)"]),
    "logging off": ({"logging_strategy": "no"}, Log(every(5)), ["Log(trigger=every(5)", "logging_strategy='no'"]),
    "evaluating": (
        {"eval_strategy": "epoch"},
        Evaluate(every(5)),
        ["Evaluate(trigger=every(5)", "eval_strategy='epoch'", 'every(1, "epoch")'],
    ),
    "saving": (
        {"save_total_limit": 3},
        Checkpoint(every(500) | at_end(early=False), keep=Keep(last=3)),
        ["Keep(last=3", "save_total_limit=3", "total=3"],
    ),
    "the best model": (
        {"load_best_model_at_end": True, "eval_strategy": "epoch"},
        KeepBest("accuracy"),
        ["KeepBest(metric='eval_accuracy'", "load_best_model_at_end=True", "metric='eval_loss'"],
    ),
    "precision": ({"bf16": True}, MixedPrecision("fp16"), ["MixedPrecision(dtype='fp16'", "bf16=True"]),
    "recomputation": (
        {"gradient_checkpointing": True},
        GradientCheckpointing({"use_reentrant": True}),
        ["GradientCheckpointing(options={'use_reentrant': True}", "gradient_checkpointing=True"],
    ),
    "progress": ({"disable_tqdm": True}, Progress(bar=True), ["Progress(bar=True)", "disable_tqdm=True"]),
}


@pytest.mark.parametrize(("args", "callback", "parts"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_is_an_error_that_names_both(
    args: dict[str, Any], callback: Callback, parts: list[str], tmp_path: Path
):
    with pytest.raises(ArgumentError) as caught:
        make(tmp_path, args, [callback])
    for part in ("Callbacks contradict arguments", "leave out one", *parts):
        assert part in str(caught.value)


def test_all_contradictions_are_in_one_error(tmp_path: Path):
    with pytest.raises(ArgumentError) as caught:
        make(tmp_path, {"logging_steps": 10, "save_steps": 10}, [Log(every(5)), Checkpoint(every(5))])
    assert str(caught.value).count("\n- ") == 2


@pytest.mark.parametrize(("args", "callbacks"), SAID_TWICE.values(), ids=SAID_TWICE)
def test_equal_duplicate_settings_are_accepted(args: dict[str, Any], callbacks: Listed, tmp_path: Path):
    run = make(tmp_path, args, listed := callbacks())
    kinds = [type(callback) for callback in run.callbacks.values()]
    assert len(kinds) == len(set(kinds))  # the listed callback took the place of the one that the arguments spell
    assert all(any(callback is attached for attached in run.callbacks.values()) for callback in listed)


def test_a_class_in_the_list_is_an_instance_with_its_defaults(tmp_path: Path):
    run = make(tmp_path, {}, [Log])
    assert [callback for callback in run.callbacks.values() if isinstance(callback, Log)] == [Log()]
