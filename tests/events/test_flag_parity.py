"""The flags of the control read in every event as they do under transformers.Trainer 5.23."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import Dataset

import trainbus

FLAGS = ("should_log", "should_evaluate", "should_save", "should_epoch_stop", "should_training_stop")
SHARED = [name for name in vars(transformers.TrainerCallback) if name.startswith("on_")]


class Reading(NamedTuple):
    """What a callback reads in one event."""

    event: str
    step: int
    raised: tuple[str, ...]


class Recorder(transformers.TrainerCallback):
    """Notes the raised flags in every event, and may raise or lower one itself."""

    def __init__(self, actions: dict[tuple[str, int], tuple[str, bool]] | None = None) -> None:
        self.readings: list[Reading] = []
        self.actions = actions or {}


def _recording(event: str) -> Any:
    def handler(self: Recorder, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raised = tuple(flag for flag in FLAGS if getattr(control, flag))
        self.readings.append(Reading(event, state.global_step, raised))
        if (event, state.global_step) in self.actions:
            setattr(control, *self.actions[event, state.global_step])

    return handler


for _event in SHARED:
    setattr(Recorder, _event, _recording(_event))


class Rows(Dataset):
    """Samples of two numbers and a label."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.inputs = torch.randn(count, 2, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.inputs[index], "labels": self.inputs[index].sum()}


class Line(nn.Module):
    """A linear regression that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        predictions = self.line(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predictions, labels), "logits": predictions}


def readings(library: Any, folder: Path, options: dict[str, Any], actions: Any, evaluate_on: Any) -> list[Reading]:
    torch.manual_seed(0)
    recorder = Recorder(actions)
    args = library.TrainingArguments(
        str(folder / library.__name__),
        **{"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "num_train_epochs": 2, **options},
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = library.Trainer(Line(), args, train_dataset=Rows(10), eval_dataset=evaluate_on, callbacks=[recorder])
    trainer.train()
    return recorder.readings


STEPS = {"logging_strategy": "steps", "eval_strategy": "steps", "save_strategy": "steps"}
EPOCHS = {"logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch"}
NOTHING = {"logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no"}
EVERY_TWO = {**STEPS, "logging_steps": 2, "eval_steps": 2, "save_steps": 2}

CASES: dict[str, tuple[dict[str, Any], dict[tuple[str, int], tuple[str, bool]]]] = {
    "all work at every second step": (EVERY_TWO, {}),
    "all work at every epoch": (EPOCHS, {}),
    "nothing": (NOTHING, {}),
    "different intervals": ({**STEPS, "logging_steps": 1, "eval_steps": 3, "save_steps": 6}, {}),
    "gradient accumulation": ({**EVERY_TWO, "gradient_accumulation_steps": 2}, {}),
    "max_steps inside an epoch": ({**EVERY_TWO, "logging_steps": 1, "max_steps": 7}, {}),
    "an evaluation before the first step": ({**EPOCHS, "eval_on_start": True}, {}),
    "first step logged": ({**EPOCHS, "logging_first_step": True, "logging_strategy": "steps", "logging_steps": 5}, {}),
    "the best model": (
        {**EVERY_TWO, "load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1},
        {},
    ),
    "only the best model saved": ({**EVERY_TWO, "save_strategy": "best", "metric_for_best_model": "loss"}, {}),
    "a callback stops the training in a step": (EVERY_TWO, {("on_step_end", 3): ("should_training_stop", True)}),
    "a callback stops the training at a save": (EVERY_TWO, {("on_save", 4): ("should_training_stop", True)}),
    "a callback stops the training at an evaluation": (EVERY_TWO, {("on_evaluate", 4): ("should_training_stop", True)}),
    "a callback stops the training at the end of an epoch": (
        EPOCHS,
        {("on_epoch_end", 5): ("should_training_stop", True)},
    ),
    "a callback ends the epoch": ({**EVERY_TWO, **EPOCHS}, {("on_step_end", 3): ("should_epoch_stop", True)}),
    "a callback ends the last epoch": (EVERY_TWO, {("on_step_end", 8): ("should_epoch_stop", True)}),
    "a callback requests all work in a step": (NOTHING, {("on_step_end", 3): ("should_evaluate", True)}),
    "a callback requests a save while evaluating": (
        {**NOTHING, "eval_strategy": "steps", "eval_steps": 3},
        {("on_prediction_step", 3): ("should_save", True)},
    ),
    "a callback requests a save in a log": (
        {**NOTHING, "logging_strategy": "steps", "logging_steps": 5},
        {("on_log", 5): ("should_save", True)},
    ),
}


@pytest.mark.parametrize(("options", "actions"), CASES.values(), ids=CASES)
def test_flags_read_as_under_transformers(tmp_path: Path, options: Any, actions: Any) -> None:
    theirs = readings(transformers, tmp_path, options, actions, Rows(4))
    ours = readings(trainbus, tmp_path, options, actions, Rows(4))
    assert ours == theirs


def test_flags_read_as_under_transformers_with_two_eval_datasets(tmp_path: Path) -> None:
    both = {"near": Rows(4), "far": Rows(6)}
    assert readings(trainbus, tmp_path, EVERY_TWO, {}, both) == readings(transformers, tmp_path, EVERY_TWO, {}, both)


def test_the_flags_are_raised_while_their_work_is_done(tmp_path: Path) -> None:
    seen = {
        (reading.event, flag)
        for reading in readings(trainbus, tmp_path, EVERY_TWO, {}, Rows(4))
        for flag in reading.raised
    }
    assert ("on_prediction_step", "should_evaluate") in seen
    assert ("on_evaluate", "should_evaluate") not in seen
    assert ("on_evaluate", "should_save") in seen
    assert ("on_save", "should_save") not in seen
    assert ("on_log", "should_training_stop") in seen
    assert ("on_train_end", "should_training_stop") in seen


def test_a_second_training_starts_with_no_flag_raised(tmp_path: Path) -> None:
    recorder = Recorder()
    args = trainbus.TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, disable_tqdm=True, report_to="none")
    trainer = trainbus.Trainer(Line(), args, train_dataset=Rows(4), callbacks=[recorder])
    for _ in range(2):
        trainer.train()
        assert not trainer.control.serving
        assert not any(getattr(trainer.control, flag) for flag in FLAGS)
    begins = [reading for reading in recorder.readings if reading.event in ("on_train_begin", "on_epoch_begin")]
    assert [reading.raised for reading in begins] == [()] * len(begins)


def test_a_failing_evaluation_leaves_no_flag_raised(tmp_path: Path) -> None:
    def fail(prediction: Any) -> Any:
        raise RuntimeError("the metrics fail")

    args = trainbus.TrainingArguments(
        str(tmp_path), **{**EVERY_TWO, "logging_steps": 2}, use_cpu=True, disable_tqdm=True, report_to="none"
    )
    trainer = trainbus.Trainer(Line(), args, train_dataset=Rows(8), eval_dataset=Rows(4), compute_metrics=fail)
    with pytest.raises(RuntimeError, match="the metrics fail"):
        trainer.train()
    assert not trainer.control.serving
    assert not trainer.control.should_evaluate
