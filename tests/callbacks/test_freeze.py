"""Freezing parts of the model, and thawing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Freeze, Trainer, TrainingArguments, at, every
from trainbus.events.errors import ModelError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def trainer_of(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    torch.manual_seed(1)
    rows = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=4, learning_rate=0.1, weight_decay=0.1, disable_tqdm=True, **options
    )
    return Trainer(Net(), args, train_dataset=rows, criterion=nn.CrossEntropyLoss(), callbacks=list(callbacks))


def moves(trainer: Trainer, part: str, **options: Any) -> list[bool]:
    """Train, and say of each step whether it moved a part of the model."""
    weight = trainer.model.get_parameter(f"{part}.weight")
    moved, before = [], weight.detach().clone()

    def look() -> None:
        moved.append(not torch.equal(weight, before))
        before.copy_(weight.detach())

    trainer.on("on_step_end", look)
    trainer.train(**options)
    return moved


def test_frozen_weights_stay_and_the_others_move(tmp_path: Path) -> None:
    assert not any(moves(trainer_of(tmp_path, Freeze("body"), max_steps=6), "body"))
    assert all(moves(trainer_of(tmp_path, Freeze("body"), max_steps=6), "head"))


def test_they_are_thawed_when_it_is_due_at_a_step(tmp_path: Path) -> None:
    thawing = Freeze("body", until=at(3))
    assert moves(trainer_of(tmp_path, thawing, max_steps=6), "body") == [False] * 3 + [True] * 3
    assert thawing.thawed


def test_they_are_thawed_when_it_is_due_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Freeze("body", until=every(1, "epoch")), num_train_epochs=2)
    assert moves(trainer, "body") == [False] * 16 + [True] * 16


def test_after_the_run_weights_are_as_trainable_as_before(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Freeze("body"), max_steps=2)
    trainer.model.head.bias.requires_grad_(False)
    trainer.train()
    assert [name for name, weight in trainer.model.named_parameters() if not weight.requires_grad] == ["head.bias"]


def test_a_regular_expression_selects_modules(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Freeze(r".*\.bias$"), max_steps=3)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    same = {name for name, weight in trainer.model.named_parameters() if torch.equal(weight, before[name])}
    assert same == {"body.bias", "head.bias"}


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="did you mean 'body'"):
        trainer_of(tmp_path, Freeze("boddy")).train()


@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_run_freezes_as_long_as_an_unbroken_one(stop: int, tmp_path: Path) -> None:
    whole = trainer_of(tmp_path / "whole", Freeze("body", until=at(4)), max_steps=8, save_strategy="no")
    whole.train()
    broken = trainer_of(tmp_path / "broken", Freeze("body", until=at(4)), max_steps=8, save_steps=1)
    broken.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=stop)
    broken.train()
    resumed = trainer_of(tmp_path / "broken", Freeze("body", until=at(4)), max_steps=8, save_strategy="no")
    resumed.train(resume_from_checkpoint=True)
    for mine, other in zip(whole.model.parameters(), resumed.model.parameters()):
        assert torch.equal(mine, other)
