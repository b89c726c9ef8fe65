"""SWA: the average equals torch's, from the start on, also after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from support.callbacks import stop_at
from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import EMA, SWA, Checkpoint, every
from trainbus.events.errors import ArgumentError, TrainbusError


def test_the_average_is_that_of_torch(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, SWA(start=0.5, trigger=every(1)), max_steps=8)
    averaged = AveragedModel(trainer.model, use_buffers=False)
    trained: dict[str, Any] = {}

    def update(state: Any, model: nn.Module) -> None:
        trained.update(weights(model))
        if state.global_step >= 4:
            averaged.update_parameters(model)

    trainer.on("on_step_end", update)
    trainer.train()
    expected = weights(averaged.module)
    assert all(torch.allclose(weights(trainer.model)[name], expected[name], atol=1e-7) for name in expected)
    assert not same_weights(weights(trainer.model), trained)


def test_it_averages_at_the_end_of_epochs_and_is_evaluated(tmp_path: Path) -> None:
    swa = SWA(start=0.5)
    trainer = net_trainer(tmp_path, swa, max_steps=-1, num_train_epochs=4, eval_strategy="epoch")
    ends, evaluated = [], []
    trainer.on("on_epoch_end", lambda model: ends.append(weights(model)))
    trainer.on("on_prediction_step", lambda model: evaluated.append(weights(model)))
    trainer.train()
    assert swa.count == 3  # the ends of epochs 2, 3 and 4: step 8 is half of the run
    mean = {name: (ends[1][name] + ends[2][name] + ends[3][name]) / 3 for name in ends[0]}
    assert all(torch.allclose(weights(trainer.model)[name], mean[name], atol=1e-6) for name in mean)
    assert same_weights(evaluated[0], ends[0])
    assert same_weights(evaluated[-1], weights(trainer.model))


def test_its_learning_rate_replaces_the_schedule_after_the_start(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, SWA(start=0.5, trigger=every(1), learning_rate=0.007), max_steps=6)
    rates: list[float] = []
    trainer.on("on_step_end", lambda learning_rate: rates.append(learning_rate))
    trainer.train()
    assert rates[:3] == pytest.approx([0.05, 0.05 * 5 / 6, 0.05 * 4 / 6])
    assert rates[3:] == [0.007] * 3


def test_a_resumed_run_has_the_same_average(tmp_path: Path) -> None:
    options = {"max_steps": 8}
    unbroken = net_trainer(tmp_path / "unbroken", SWA(0.25, every(1), 0.01), **options)
    unbroken.train()
    broken = net_trainer(tmp_path / "broken", SWA(0.25, every(1), 0.01), Checkpoint(every(5)), **options)
    broken.on("on_step_end", stop_at(5))
    broken.train()
    resumed = net_trainer(tmp_path / "broken", SWA(0.25, every(1), 0.01), **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))


class Normed(Net):
    """A `Net` with a BatchNorm and without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        for block in self.blocks:
            block.dropout.p = 0.0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(self.norm(x), labels)


def test_batchnorm_is_measured_with_the_averaged_weights(tmp_path: Path) -> None:
    options = {"train_sampling_strategy": "sequential", "max_steps": 4}
    trainer = net_trainer(tmp_path, SWA(0.0, every(1)), model=Normed(), **options)
    trainer.train()
    expected = Normed()
    expected.load_state_dict(trainer.model.state_dict())
    update_bn(
        [torch.stack([row["x"] for row in net_samples()[start : start + 4]]) for start in (0, 4, 8, 12)], expected
    )
    assert torch.allclose(trainer.model.norm.running_mean, expected.norm.running_mean)
    assert torch.allclose(trainer.model.norm.running_var, expected.norm.running_var)
    assert trainer.model.norm.momentum == 0.1


def test_useless_settings_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ArgumentError, match=r"SWA\(start=1\): set a share of the run"):
        SWA(start=1)
    with pytest.raises(TrainbusError, match="only one average can replace the weights"):
        net_trainer(tmp_path, SWA(), EMA())
    net_trainer(tmp_path, SWA(trigger=every(100)), max_steps=2).train()
    assert "SWA averaged no weights: every(100) was not due after step 1." in caplog.text
