"""Evaluations return each module to its own mode, and say when they find no labels."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.data import points
from support.models import Regression
from support.trainers import regression_trainer


class Frozen(Regression):
    """A regression with a normalization layer and dropout."""

    def __init__(self) -> None:
        super().__init__(dropout=0.5)
        self.norm = nn.BatchNorm1d(3)
        self.modes: list[tuple[bool, bool, bool]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.modes.append((self.training, self.norm.training, self.dropout.training))
        return super().forward(self.norm(x), labels)


EVALUATES = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 3, "per_device_eval_batch_size": 8}


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_frozen_module_stays_in_eval_mode_after_evaluations(rounds: int, tmp_path: Path):
    model = Frozen()
    run = regression_trainer(tmp_path, model, eval_dataset=points(8), args=EVALUATES)
    run.on("on_train_begin", lambda: model.norm.eval())
    before = model.norm.running_mean.clone()
    for _ in range(rounds):
        model.modes.clear()
        run.train()
        assert model.modes == [(True, False, True), (False, False, False)] * 3
    assert torch.equal(model.norm.running_mean, before)


def test_a_module_that_is_not_frozen_trains_after_evaluations(tmp_path: Path):
    model = Frozen().eval()  # as `from_pretrained` returns models
    run = regression_trainer(tmp_path, model, eval_dataset=points(8), args=EVALUATES)
    run.evaluate()
    model.modes.clear()
    run.train()
    assert model.modes == [(True, True, True), (False, False, False)] * 3


class Unnamed(nn.Module):
    """Its labels have a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted = self.linear(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predicted, y), "logits": predicted}


def with_y() -> list[dict[str, Any]]:
    return [{"x": row["x"], "y": row["labels"]} for row in points(8)]


def test_an_evaluation_without_labels_warns_once_with_the_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = regression_trainer(
        tmp_path, Unnamed(), eval_dataset=with_y(), compute_metrics=lambda prediction: {"count": 1}
    )
    run.evaluate()
    run.evaluate()
    told = [record.getMessage() for record in caplog.records if "label_names=" in record.getMessage()]
    assert len(told) == 1
    for part in ("no eval_loss", "compute_metrics is not called", "forward takes: x, y"):
        assert part in told[0]


def test_named_labels_give_the_loss_and_the_metrics(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = regression_trainer(
        tmp_path,
        Unnamed(),
        eval_dataset=with_y(),
        compute_metrics=lambda prediction: {"count": len(prediction.label_ids)},
        args={"label_names": ["y"]},
    )
    metrics = run.evaluate()
    assert metrics["eval_count"] == 8
    assert "eval_loss" in metrics
    assert "label_names=" not in caplog.text


def test_a_partial_forward_has_an_evaluation_loss(tmp_path: Path):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Regression()
            self.forward = functools.partial(self.scaled, 2.0)

        def scaled(self, factor: float, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            return self.inner(x * factor, labels)

    assert "eval_loss" in regression_trainer(tmp_path, Outer(), eval_dataset=points(8)).evaluate()


def test_a_prediction_without_labels_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    regression_trainer(tmp_path).predict([{"x": row["x"]} for row in points(8)])
    assert "label_names=" not in caplog.text
