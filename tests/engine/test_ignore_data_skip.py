"""With `ignore_data_skip`, a resumed run starts with the first batch of its epoch, as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import history, same_weights, saved_steps, weights
from support.trainers import hushed


def run(library: Any, folder: Path, checkpoint: Path | None = None, **args: Any) -> Any:
    with hushed():
        given = library.TrainingArguments(
            str(folder / library.__name__),
            **{"per_device_train_batch_size": 4, "num_train_epochs": 3, "learning_rate": 0.02, "logging_steps": 1},
            **{"use_cpu": True, "disable_tqdm": True, "report_to": "none", "ignore_data_skip": True, **args},
        )
        trainer = library.Trainer(model=Regression(dropout=0.3), args=given, train_dataset=points(18))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


@pytest.mark.parametrize(
    "args",
    [
        {"save_strategy": "steps"},
        {"save_strategy": "epoch"},
        {"save_strategy": "steps", "gradient_accumulation_steps": 2},
        {"save_strategy": "steps", "max_steps": 8},
    ],
    ids=["steps", "epoch", "accumulation", "maximum"],
)
def test_each_checkpoint_resumes_as_in_transformers(args: dict[str, Any], tmp_path: Path) -> None:
    whole = [run(library, tmp_path, save_steps=1, **args) for library in (transformers, trainbus)]
    length = whole[1].state.max_steps
    steps = [step for step in saved_steps(tmp_path / "trainbus") if step < length]
    assert steps
    for step in steps:
        theirs, ours = (
            run(
                library, tmp_path, tmp_path / library.__name__ / f"checkpoint-{step}", **{**args, "save_strategy": "no"}
            )
            for library in (transformers, trainbus)
        )
        assert same_weights(weights(theirs.model), weights(ours.model)), step
        assert history(theirs)[:-1] == history(ours)[:-1], step
        assert theirs.state.epoch == ours.state.epoch, step


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_resume_at_the_end_of_an_epoch_equals_the_uninterrupted_run(strategy: str, tmp_path: Path) -> None:
    whole = run(trainbus, tmp_path, save_strategy=strategy, save_steps=5)
    resumed = run(trainbus, tmp_path, tmp_path / "trainbus" / "checkpoint-5", save_strategy="no")
    assert same_weights(weights(whole.model), weights(resumed.model))
    assert history(whole) == history(resumed)
