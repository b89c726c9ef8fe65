"""A checkpoint of the last complete step, written when an error ends the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.callbacks import Boom
from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import EMA, Checkpoint, Log, SaveOnException, Stage, every
from trainbus.events.triggers import never


class Normed(Net):
    """A `Net` with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(self.norm(x), labels)


def trainer_of(folder: Path, *more: Any, **options: Any) -> Any:
    listed = (SaveOnException(), EMA(0.5), Log(every(3)), *more)
    return net_trainer(folder, *listed, model=Normed(), eval_dataset=net_samples(8), max_steps=8, **options)


def fail_at(trainer: Any, event: str, step: int) -> None:
    def fail(state: Any) -> None:
        if state.global_step == step:
            raise Boom

    trainer.on(event, fail, stage=Stage.ACT)


@pytest.mark.parametrize(
    ("event", "options"),
    [
        ("on_batch", {}),
        ("on_loss", {"dataloader_num_workers": 2}),
        ("on_gradients", {"gradient_accumulation_steps": 2}),
        ("on_step_end", {}),
        ("on_prediction_step", {"eval_strategy": "steps", "eval_steps": 5}),
        ("on_epoch_end", {}),
    ],
)
def test_the_run_resumes_exactly_from_the_last_complete_step(
    tmp_path: Path, event: str, options: dict[str, Any]
) -> None:
    unbroken = trainer_of(tmp_path / "unbroken", **options)
    unbroken.train()
    step = 4 if event == "on_epoch_end" else 5
    broken = trainer_of(tmp_path / "broken", Checkpoint(never()), **options)
    fail_at(broken, event, step)
    with pytest.raises(Boom):
        broken.train()
    assert [path.name for path in (tmp_path / "broken").glob("checkpoint-*")] == [f"checkpoint-{step}"]
    resumed = trainer_of(tmp_path / "broken", **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(resumed.model.state_dict(), unbroken.model.state_dict())
    losses = [
        [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] for trainer in (resumed, unbroken)
    ]
    assert losses[0] == losses[1]


class Failing(torch.utils.data.Dataset[Any]):
    """Samples of which one cannot be read."""

    def __init__(self, bad: int | None) -> None:
        self.rows, self.bad = net_samples(), bad

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise Boom
        return self.rows[index]


def test_a_run_resumes_after_a_sample_that_cannot_be_read(tmp_path: Path) -> None:
    options = {"train_sampling_strategy": "sequential"}
    unbroken = net_trainer(tmp_path / "unbroken", train_dataset=Failing(None), max_steps=4, **options)
    unbroken.train()
    broken = net_trainer(tmp_path / "run", SaveOnException(), train_dataset=Failing(13), max_steps=4, **options)
    with pytest.raises(Boom):
        broken.train()
    resumed = net_trainer(tmp_path / "run", train_dataset=Failing(None), max_steps=4, **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))


@pytest.mark.parametrize(("event", "step"), [("on_optimizer_step", 3), ("on_loss", 0)])
def test_nothing_is_written_inside_of_an_update_or_before_the_first_step(tmp_path: Path, event: str, step: int) -> None:
    trainer = trainer_of(tmp_path)
    fail_at(trainer, event, step)
    with pytest.raises(Boom):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))
