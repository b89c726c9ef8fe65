"""Handlers of `on_epoch_begin` and `on_train_end` draw the same numbers in a resumed and in an uninterrupted run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.data import net_samples
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Trainer, default_data_collator

EVENTS = ("on_epoch_begin", "on_train_end")


def noisy(features: list[Any]) -> Any:
    batch = default_data_collator(features)
    batch["x"] = batch["x"] + torch.rand(())
    return batch


class Draws:
    """Draws random numbers in the events of `EVENTS`, and keeps the draws by event and step."""

    def __init__(self, trainer: Trainer) -> None:
        self.drawn: dict[tuple[str, int], tuple[float, float, float]] = {}
        for event in EVENTS:
            trainer.on(event, lambda state, event=event: self.draw(event, state.global_step), id=event)

    def draw(self, event: str, step: int) -> None:
        self.drawn[event, step] = (torch.rand(()).item(), random.random(), float(np.random.rand()))


def run_of(folder: Path, **options: Any) -> tuple[Trainer, Draws]:
    """Build a trainer with epochs of 4 steps, and attach handlers that draw."""
    trainer = net_trainer(
        folder,
        train_dataset=net_samples(16),
        eval_dataset=net_samples(8, seed=1),
        data_collator=noisy,
        **{"save_steps": 2, "eval_steps": 2, **options},
    )
    return trainer, Draws(trainer)


@pytest.mark.parametrize("steps", [8, 6])
@pytest.mark.parametrize("evaluate", ["no", "epoch"])
@pytest.mark.parametrize("save", ["steps", "epoch"])
def test_the_draws_of_a_resumed_run(save: str, evaluate: str, steps: int, tmp_path: Path) -> None:
    options = {"save_strategy": save, "eval_strategy": evaluate, "max_steps": steps}
    whole, expected = run_of(tmp_path, **options)
    whole.train()
    for folder in sorted(tmp_path.glob("checkpoint-*")):
        step = int(folder.name.partition("-")[2])
        torch.manual_seed(step)
        resumed, found = run_of(tmp_path / "resumed", **options)
        resumed.train(resume_from_checkpoint=str(folder))
        if save == "steps":  # the epoch is still open, so this session announces `on_epoch_begin` a second time
            del found.drawn["on_epoch_begin", step]
        assert ("on_train_end", steps) in found.drawn
        assert {key: expected.drawn[key] for key in found.drawn} == found.drawn, folder.name
        assert same_weights(weights(resumed.model), weights(whole.model)), folder
