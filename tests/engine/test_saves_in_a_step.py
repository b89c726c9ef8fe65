"""Saves inside of a step: a resumed run repeats this step, because its batches are not done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trainbus
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer

IN_A_STEP = ("on_step_begin", "on_batch", "on_loss", "on_gradients", "on_pre_optimizer_step")


@pytest.mark.parametrize("place", ["training_step", *IN_A_STEP, "on_step_end"])
@pytest.mark.parametrize("workers", [0, 2])
def test_run_repeats_the_step_in_which_the_program_saved(tmp_path: Path, place: str, workers: int) -> None:
    def save(trainer: Any) -> None:
        if trainer.state.global_step == 3:
            trainer._save_checkpoint(trainer.model, None)

    class Saves(trainbus.Trainer):
        def training_step(self, *rest: Any, **options: Any) -> Any:
            save(self)
            return super().training_step(*rest, **options)

    args = {"max_steps": 8, "save_strategy": "no", "dataloader_num_workers": workers}
    kind = Saves if place == "training_step" else trainbus.Trainer
    unbroken = regression_trainer(tmp_path, args=args, kind=kind)
    if kind is trainbus.Trainer:
        unbroken.on(place, lambda: save(unbroken))
    unbroken.train()
    resumed = regression_trainer(tmp_path, args=args)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == 8
    assert same_weights(weights(resumed.model), weights(unbroken.model))
