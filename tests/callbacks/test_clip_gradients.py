"""Clipping by value and adaptive clipping, against raw loops and Lightning."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import ClipAdaptively, ClipByValue, Log, every
from trainbus.callbacks.optimizer.clip_gradients import adaptive_scale
from trainbus.events.errors import ArgumentError


class Still(Net):
    """A `Net` without dropout."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.dropout.p = 0.0


PLAIN: dict[str, Any] = {"optim": "sgd", "lr_scheduler_type": "constant", "max_steps": 4, "max_grad_norm": 0.0}


def raw_loop(clip: Any, model: nn.Module) -> nn.Module:
    """Train in the order of the dataset, in batches of 4, with SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = net_samples()
    for start in range(0, 16, 4):
        batch = {name: torch.stack([row[name] for row in rows[start : start + 4]]) for name in rows[0]}
        model(**batch)["loss"].backward()
        clip(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_clip_by_value_trains_as_a_raw_loop(tmp_path: Path) -> None:
    options = {**PLAIN, "train_sampling_strategy": "sequential"}
    trainer = net_trainer(tmp_path, ClipByValue(0.1), model=Still(), **options)
    trainer.train()
    expected = raw_loop(lambda parameters: nn.utils.clip_grad_value_(parameters, 0.1), Still())
    unclipped = raw_loop(lambda parameters: None, Still())
    assert same_weights(weights(trainer.model), weights(expected))
    assert not same_weights(weights(expected), weights(unclipped))


def test_clip_by_value_trains_as_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Still()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    module = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = lightning.Trainer(
            max_epochs=1,
            gradient_clip_val=0.1,
            gradient_clip_algorithm="value",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=tmp_path,
        )
        theirs.fit(module, torch.utils.data.DataLoader(net_samples(), batch_size=4))
    trainer = net_trainer(
        tmp_path, ClipByValue(0.1), model=Still(), **{**PLAIN, "train_sampling_strategy": "sequential"}
    )
    trainer.train()
    assert same_weights(weights(trainer.model), weights(module.net))


def test_adaptive_clipping_trains_as_a_raw_loop(tmp_path: Path) -> None:
    def clip(parameters: list[nn.Parameter]) -> None:
        for weight in parameters:  # as in the reference code of the paper
            gradient, axes = weight.grad, tuple(range(1, weight.dim()))
            assert gradient is not None
            norms = [
                part.norm() if not axes else part.pow(2).sum(axes, keepdim=True).sqrt() for part in (weight, gradient)
            ]
            most = norms[0].clamp(min=1e-3) * 0.02
            clipped = gradient * (most / norms[1].clamp(min=1e-6))
            weight.grad = torch.where(norms[1] < most, gradient, clipped).detach()

    options = {**PLAIN, "train_sampling_strategy": "sequential"}
    trainer = net_trainer(tmp_path, ClipAdaptively(0.02), model=Still(), **options)
    trainer.train()
    expected = weights(raw_loop(clip, Still()))
    found = weights(trainer.model)
    assert all(torch.allclose(found[name], expected[name], atol=1e-7) for name in expected)
    assert not same_weights(expected, weights(raw_loop(lambda parameters: None, Still())))


def test_adaptive_scale_keeps_small_gradients_and_clips_at_zero_weights() -> None:
    weight, gradient = torch.ones(2, 3), torch.full((2, 3), 1e-5)
    assert adaptive_scale(weight, gradient, 0.01, 1e-3).eq(1).all()
    assert adaptive_scale(torch.zeros(2, 3), gradient, 0.01, 1e-3).lt(1).all()
    assert adaptive_scale(torch.tensor(2.0), torch.tensor(4.0), 0.01, 1e-3) == pytest.approx(0.005)


def test_the_logged_norm_is_measured_after_clipping_by_value(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, ClipByValue(0.01), Log(every(1)), **PLAIN)
    trainer.train()
    count = sum(weight.numel() for weight in trainer.model.parameters())
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert norms
    assert all(norm <= 0.01 * count**0.5 for norm in norms)


def test_useless_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"ClipByValue\(limit=0\): set a limit above 0"):
        ClipByValue(0)
    with pytest.raises(ArgumentError, match=r"ClipAdaptively\(eps=nan\)"):
        ClipAdaptively(eps=float("nan"))
