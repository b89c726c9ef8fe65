"""Errors of the losses of torch say what the loss received, and what it needs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments

LONG, FLOAT, DOUBLE = torch.int64, torch.float32, torch.float64


class Scores(nn.Module):
    """Returns scores of a shape, from a layer."""

    def __init__(self, shape: tuple[int, ...], sigmoid: bool = False) -> None:
        super().__init__()
        self.shape, self.sigmoid = shape, sigmoid
        self.layer = nn.Linear(4, torch.Size(shape).numel())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x).reshape(-1, *self.shape)
        return scores.sigmoid() if self.sigmoid else scores


class OwnLoss(nn.Module):
    """Computes its loss in forward."""

    def __init__(self, scores: nn.Module, loss: Any) -> None:
        super().__init__()
        self.scores, self.loss = scores, loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return {"loss": self.loss(self.scores(x), labels)}


def trained(folder: Path, model: nn.Module, labels: torch.Tensor, **inputs: Any) -> None:
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", max_steps=2)
    Trainer(model, args, train_dataset=TensorDataset(torch.zeros(8, 4), labels), **inputs).train()


def ones(*shape: int, dtype: torch.dtype = LONG) -> torch.Tensor:
    return torch.ones(8, *shape, dtype=dtype)


CROSS, NLL, BINARY = functional.cross_entropy, functional.nll_loss, functional.binary_cross_entropy_with_logits
CASES: dict[str, tuple[Any, tuple[int, ...], torch.Tensor, str]] = {
    "float classes": (CROSS, (3,), ones(dtype=FLOAT), "labels as float32 of shape (8,). Class labels are int64"),
    "bool classes": (CROSS, (3,), ones(dtype=torch.bool), "labels as bool of shape (8,). Class labels are int64"),
    "float classes of nll": (NLL, (3,), ones(dtype=FLOAT), "`nll_loss` received outputs as float32 of shape (8, 3)"),
    "a column of classes": (CROSS, (3,), ones(1), "shape (8,) and are int64: pass `labels.squeeze(-1)`."),
    "a float column": (CROSS, (3,), ones(1, dtype=FLOAT), "pass `labels.squeeze(-1).to(torch.int64)`."),
    "one-hot classes": (CROSS, (3,), ones(3), "pass the numbers of the classes, as in `labels.argmax(1)`"),
    "tokens": (CROSS, (5, 3), ones(5), "The classes are dimension 1 of the outputs"),
    "one score": (CROSS, (), ones(), "one score for each sample, and this loss needs one for each class"),
    "another length": (CROSS, (3,), ones(2), "class labels have the shape (8,)."),
    "integers of a binary loss": (BINARY, (1,), ones(1), "This loss needs floating-point targets: `labels.float()`."),
    "flat binary labels": (BINARY, (1,), ones(dtype=FLOAT), "`outputs.squeeze(-1)` in forward, or `labels.unsqueeze"),
    "both": (BINARY, (1,), ones(), "`labels.unsqueeze(-1)`. This loss needs floating-point targets"),
    "several classes": (BINARY, (3,), ones(dtype=FLOAT), "labels as float32 of shape (8,). Give both the same shape."),
    "a regression": (functional.mse_loss, (3,), ones(dtype=FLOAT), "Give both the same shape."),
    "margins": (functional.multi_margin_loss, (3,), ones(dtype=FLOAT), "Class labels are int64"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("own", [False, True], ids=["criterion", "model"])
@pytest.mark.parametrize("case", CASES)
def test_the_note_says_what_the_loss_received_and_needs(case: str, own: bool, tmp_path: Path) -> None:
    loss, shape, labels, text = CASES[case]
    model = OwnLoss(Scores(shape), loss) if own else Scores(shape)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        trained(tmp_path, model, labels, **({} if own else {"criterion": loss}))
    [note] = [each for each in caught.value.__notes__ if "labels as" in each]
    assert text in note


@pytest.mark.parametrize(
    ("sigmoid", "labels", "text"),
    [
        (True, ones(1), "This loss needs floating-point targets: `labels.float()`."),
        (True, ones(1, dtype=DOUBLE), "Give the labels the type of the outputs: `labels.to(torch.float32)`."),
        (True, ones(1, dtype=FLOAT) * 5, "The labels must be from 0 to 1"),
        (False, ones(1, dtype=FLOAT), "use `binary_cross_entropy_with_logits`, or add a sigmoid."),
    ],
)
def test_probabilities_of_a_binary_loss(sigmoid: bool, labels: torch.Tensor, text: str, tmp_path: Path) -> None:
    model = Scores((1,), sigmoid)
    nn.init.constant_(model.layer.bias, 2)
    with pytest.raises(RuntimeError) as caught:
        trained(tmp_path, model, labels, criterion=nn.BCELoss())
    assert text in "\n".join(caught.value.__notes__)


def test_an_evaluation_has_the_same_note(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    rows = TensorDataset(torch.zeros(8, 4), ones(dtype=FLOAT))
    with pytest.raises(RuntimeError) as caught:
        Trainer(Scores((3,)), args, eval_dataset=rows, criterion=nn.CrossEntropyLoss()).evaluate()
    [note] = [each for each in caught.value.__notes__ if "labels as" in each]
    assert "Class labels are int64" in note


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.PoissonNLLLoss(), functional.l1_loss, nn.HuberLoss()])
def test_a_warning_names_a_criterion_that_broadcasts(
    criterion: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        trained(tmp_path, Scores((1,)), ones(dtype=FLOAT), criterion=criterion)
        trained(tmp_path, Scores((1,)), ones(1, dtype=FLOAT), criterion=criterion)
        trained(tmp_path, Scores(()), ones(dtype=FLOAT), criterion=criterion)
    [warning] = [each.getMessage() for each in caplog.records if "outputs of shape" in each.getMessage()]
    assert "outputs of shape (8, 1) and labels of shape (8,). It compares each output with several labels" in warning
    assert "`outputs.squeeze(-1)` in forward, or `labels.unsqueeze(-1)`" in warning


def test_other_criterions_may_take_other_shapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        trained(tmp_path, Scores((3,)), ones(), criterion=CROSS)
        trained(tmp_path, Scores((3,)), ones(), criterion=lambda scores, labels: scores.mean())
    assert not [each for each in caplog.records if "outputs of shape" in each.getMessage()]
