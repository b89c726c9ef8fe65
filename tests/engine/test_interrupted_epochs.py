"""Work due by epoch waits for whole epochs: a run stopped within an epoch resumes like the uninterrupted run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import equal, history, same_weights, weights
from trainbus import Callback, DefaultFlowCallback, EarlyStopping, default_data_collator
from trainbus.callbacks.stopping.stop_on_signal import Stopped

STEPS = 12
"""Three epochs of four steps."""


class Noisy:
    """Adds noise to each batch, of the training and of evaluations."""

    def __call__(self, features: list[Any]) -> Any:
        batch = default_data_collator(features)
        batch["x"] = batch["x"] + torch.rand(())
        return batch


class Ends(Callback):
    """Ends a session after a step, by a signal or by a request."""

    def __init__(self, how: str, step: int) -> None:
        self.how, self.step = how, step

    def on_step_end(self, state: Any, control: Any) -> None:
        if state.global_step != self.step:
            return
        if self.how == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            control.request("training_stop", "for the test")
            control.request("save", "for the test")


EPOCH = {"eval_strategy": "epoch", "logging_strategy": "epoch", "save_strategy": "epoch"}
KINDS: dict[str, dict[str, Any]] = {
    "epoch": EPOCH,
    "plateau": {**EPOCH, "lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}},
    "greedy": {**EPOCH, "lr_scheduler_type": "greedy"},
    "best": {**EPOCH, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"},
    "accumulation": {**EPOCH, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    "mixed": {**EPOCH, "eval_strategy": "steps", "eval_steps": 3},
    "flow": {**EPOCH},
    "stopping": {**EPOCH},
}


def run_of(folder: Path, kind: str, *callbacks: Any, seed: int = 0) -> Any:
    args = {"per_device_train_batch_size": 4, "learning_rate": 0.05, "num_train_epochs": 3, "disable_tqdm": True}
    more: list[Any] = []
    if kind == "stopping":
        more = [EarlyStopping("eval_loss", patience=1, threshold=0.6)]
    elif kind == "flow":
        more = [DefaultFlowCallback()]
    return trainbus.Trainer(
        Regression(dropout=0.4, seed=seed),
        trainbus.TrainingArguments(str(folder), **{**args, **KINDS[kind]}),
        train_dataset=points(16),
        eval_dataset=points(12, seed=1),
        data_collator=Noisy(),
        callbacks=[*callbacks, *more],
    )


def facts(run: Any) -> dict[str, Any]:
    return {
        "weights": weights(run.model),
        # A repeated evaluation may follow the log of its step, which it precedes in an uninterrupted run.
        "logs": sorted(history(run), key=lambda entry: (entry["step"], "train_loss" in entry, "loss" in entry)),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.lr_scheduler.state_dict(),
        "step": run.state.global_step,
        "best": (run.state.best_metric, run.state.best_global_step),
    }


@pytest.mark.parametrize("how", ["signal", "request"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_at_a_step_resumes_exactly(kind: str, how: str, tmp_path: Path) -> None:
    """A signal stops the odd steps and a request the even ones, and the last of an epoch is even."""
    assert wrong_after_a_stop(tmp_path, kind, how, range(1 if how == "signal" else 2, STEPS, 2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["signal", "request"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_at_any_step_resumes_exactly(kind: str, how: str, tmp_path: Path) -> None:
    assert wrong_after_a_stop(tmp_path, kind, how, range(1, STEPS)) == []


def wrong_after_a_stop(tmp_path: Path, kind: str, how: str, steps: range) -> list[str]:
    """Return what differs from the whole run after a stop at each of these steps."""
    whole = run_of(tmp_path / "whole", kind)
    whole.train()
    expected = facts(whole)
    wrong = []
    assert whole.state.global_step in (STEPS, STEPS - 4)
    for step in range(steps.start, min(steps.stop, whole.state.global_step), steps.step):
        folder = tmp_path / str(step)
        first = run_of(folder, kind, Ends(how, step))
        try:
            first.train()
        except Stopped:
            assert how == "signal"
        again = run_of(folder, kind, seed=1)
        again.train(resume_from_checkpoint=True)
        found = facts(again)
        assert same_weights(found["weights"], weights(again.model))
        wrong += [f"step {step}: {name}" for name in expected if not equal(found[name], expected[name])]
    return wrong


@pytest.mark.parametrize("kind", ["epoch", "flow"])
def test_the_stopped_session_neither_logs_nor_evaluates_in_the_cut_epoch(kind: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, kind, Ends("signal", 6))
    with pytest.raises(Stopped):
        run.train()
    assert {entry["step"] for entry in run.state.log_history if "loss" in entry or "eval_loss" in entry} == {4}


def test_an_epoch_that_a_callback_ends_is_whole(tmp_path: Path) -> None:
    run = run_of(tmp_path, "epoch")
    run.on("on_step_end", lambda control: control.request("epoch_stop", "for the test"), once=6)
    run.train()
    assert [entry["step"] for entry in run.state.log_history if "eval_loss" in entry] == [4, 6, 10]


def test_the_planned_end_inside_of_an_epoch_ends_it(tmp_path: Path) -> None:
    run = run_of(tmp_path, "epoch")
    run.args.max_steps = 6
    run.train()
    assert [entry["step"] for entry in run.state.log_history if "eval_loss" in entry] == [4, 6]
