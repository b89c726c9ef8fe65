"""A run that ends between a save and the stop that was requested before it resumes like the uninterrupted run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.outcomes import same_weights, weights
from trainbus import (
    Callback,
    Checkpoint,
    ControlFile,
    EarlyStopping,
    EarlyStoppingCallback,
    Evaluate,
    KeepBest,
    Trainer,
    TrainingArguments,
    at,
    at_end,
    every,
)
from trainbus.callbacks.stopping.stop_on_signal import Stopped
from trainbus.events.recording.difference import first_difference
from trainbus.events.recording.files import read

BEST = {"metric_for_best_model": "score", "load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2}


class Killed(Exception):
    """Ends a session as a kill does: no callback saves."""


class StopsAtSecond(Callback):
    """Requests a stop in the second evaluation. It counts the evaluations in its state."""

    def __init__(self) -> None:
        self.seen = 0

    def on_evaluate_end(self, control: Any) -> None:
        self.seen += 1
        if self.seen == 2:
            control.request("training_stop", "two evaluations are done")

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class StopsAtStep(Callback):
    """Requests a stop and a save, and has no state."""

    def on_step_end(self, state: Any, control: Any) -> None:
        if state.global_step == 4:
            control.request("training_stop", "for the test")
            control.request("save", "for the test")


class Ends(Callback):
    """Calls a function in one event of one step. It is attached to each run, so that the recordings are comparable."""

    def __init__(self, event: str = "on_save", step: int = 0, action: Callable[[], None] = lambda: None) -> None:
        self.event, self.step, self.action = event, step, action

    def _act(self, event: str, step: int) -> None:
        if (event, step) == (self.event, self.step):
            self.step = 0
            self.action()

    def on_save(self, state: Any) -> None:
        self._act("on_save", state.global_step)

    def on_prediction_step(self, state: Any) -> None:
        self._act("on_prediction_step", state.global_step)


def kill() -> None:
    raise Killed


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def built(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    """Return a trainer of 3 epochs of 4 steps. Each evaluation is worse than the one before."""
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(16, 3), torch.randint(2, (16,)))
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2))
    options = {"num_train_epochs": 3, "logging_strategy": "epoch", "eval_strategy": "steps", "eval_steps": 2, **options}
    options = {name: value for name, value in options.items() if value is not None}
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        record=True,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        **options,
    )
    trainer: Trainer
    trainer = Trainer(
        model,
        args,
        train_dataset=rows,
        eval_dataset=rows,
        criterion=nn.CrossEntropyLoss(),
        callbacks=list(callbacks),
        compute_metrics=lambda prediction: {"score": -trainer.state.global_step},
    )
    return trainer


def compare_with_uninterrupted(folder: Path, make: Callable[[Path, Ends], Trainer], ends: Ends) -> Trainer:
    """Assert that a run that `ends` interrupts, and that is resumed, equals the uninterrupted run."""
    whole = make(folder / "whole", Ends())
    whole.train()
    with pytest.raises((Killed, Stopped)):
        make(folder / "resumed", ends).train()
    resumed = make(folder / "resumed", Ends())
    resumed.train(resume_from_checkpoint=True)
    assert str(first_difference(read(folder / "whole"), read(folder / "resumed"))) == "None"
    assert resumed.state.global_step == whole.state.global_step
    assert same_weights(weights(resumed.model), weights(whole.model))
    return resumed


STOPS: dict[str, Callable[[], Any]] = {
    "early stopping": lambda: EarlyStopping("score", patience=1),
    "early stopping of transformers": lambda: EarlyStoppingCallback(1),
    "another callback with a state": StopsAtSecond,
}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("step", [2, 4])
def test_stop_requested_before_a_save_holds_after_a_kill(name: str, step: int, tmp_path: Path) -> None:
    options = BEST | {"eval_steps": step, "save_steps": step}
    resumed = compare_with_uninterrupted(
        tmp_path, lambda folder, ends: built(folder, STOPS[name](), ends, **options), Ends("on_save", 2 * step, kill)
    )
    assert resumed.state.global_step == 2 * step


@pytest.mark.parametrize("step", [3, 4, 6])
def test_work_at_the_end_of_a_stopped_run_is_done_once(step: int, tmp_path: Path) -> None:
    def make(folder: Path, ends: Ends) -> Trainer:
        evaluate = Evaluate(at(1, step) | at_end())
        keep = Checkpoint(every(1) | at_end())
        stop = EarlyStopping("score", patience=1)
        return built(folder, evaluate, keep, stop, KeepBest("score"), ends, eval_strategy=None, eval_steps=None)

    compare_with_uninterrupted(tmp_path, make, Ends("on_save", step, kill))


@pytest.mark.parametrize(
    "change",
    [{"patience": 9}, {"num_train_epochs": 4}, None],
    ids=["more patience", "another length", "without the callback"],
)
def test_changed_program_trains_on_after_a_stop(change: dict[str, Any] | None, tmp_path: Path) -> None:
    built(tmp_path, EarlyStopping("score", patience=1), **BEST).train()
    change = dict(change or {})
    stops = [EarlyStopping("score", patience=change.pop("patience"))] if "patience" in change else []
    stops += [EarlyStopping("score", patience=1)] if change else []
    resumed = built(tmp_path, *stops, **BEST, **change)
    steps: list[int] = []
    resumed.on("on_step_end", lambda state: steps.append(state.global_step))
    resumed.train(resume_from_checkpoint=True)
    assert steps[0] == 5


def test_resume_of_an_early_stopped_run_says_how_to_train_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    built(tmp_path, EarlyStopping("score", patience=1), **BEST).train()
    resumed = built(tmp_path, EarlyStopping("score", patience=1), **BEST)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4
    assert "EarlyStopping requested a stop before the checkpoint was saved" in caplog.text
    assert "change the settings of EarlyStopping, remove it, or set another length" in caplog.text
    assert resumed.control.why("training_stop").startswith("stopped at step 4 by EarlyStopping: eval_score has not")


@pytest.mark.parametrize("how", ["callback", "function", "file", "signal"])
def test_deliberate_stop_trains_on_after_a_resume(how: str, tmp_path: Path) -> None:
    def stop(control: Any) -> None:
        if how == "file":
            (tmp_path / "stop").touch()
        elif how == "signal":
            terminate()
        else:
            control.request("training_stop", "for the test")
            control.request("save", "for the test")

    options = {"save_strategy": "steps", "save_steps": 100, "eval_strategy": "no"}
    callbacks = [StopsAtStep()] if how == "callback" else [ControlFile(seconds=0)]
    first = built(tmp_path, *callbacks, **options)
    if how != "callback":
        first.on("on_step_begin" if how in ("file", "signal") else "on_step_end", stop, once=4)
    try:
        first.train()
    except Stopped:
        assert how == "signal"
    assert first.state.global_step == 4
    assert built(tmp_path, *callbacks, **options).train(resume_from_checkpoint=True).global_step == 12


@pytest.mark.parametrize("options", [{}, {"max_steps": 6}, {"num_train_epochs": 1.5}])
@pytest.mark.parametrize("step", [4, 6])
def test_interrupted_evaluation_comes_before_the_work_at_the_end_of_its_epoch(
    options: dict[str, Any], step: int, tmp_path: Path
) -> None:
    options = {"save_strategy": "epoch", **options}
    compare_with_uninterrupted(
        tmp_path, lambda folder, ends: built(folder, ends, **options), Ends("on_prediction_step", step, terminate)
    )
