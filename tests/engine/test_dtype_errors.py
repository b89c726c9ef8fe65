"""Errors of data types name the tensors of the batch and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.trainers import regression_trainer


class Reads(nn.Module):
    """Passes `x` through a layer, with a loss of a kind."""

    def __init__(self, layer: nn.Module, loss: Any = nn.functional.cross_entropy) -> None:
        super().__init__()
        self.layer, self.loss = layer, loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        outputs = self.layer(x)
        outputs = outputs.flatten(1)
        return {"loss": self.loss(outputs, labels), "logits": outputs} if labels is not None else {"logits": outputs}


def rows(x: Any, label: Any) -> list[dict[str, Any]]:
    return [{"x": x, "labels": label} for _ in range(8)]


LINEAR, IDS = nn.Linear(4, 2), nn.Embedding(5, 2)
CASES = {
    "array": (LINEAR, rows(np.zeros(4), 1), ["x as float64 of shape (4, 4)", "weights of the model are float32"]),
    "scalars": (LINEAR, rows([np.float64(0)] * 4, 1), ["x as float64", 'astype("float32")']),
    "half": (LINEAR, rows(np.zeros(4, np.float16), 1), ["x as float16"]),
    "tensor": (LINEAR, rows(torch.zeros(4, dtype=torch.float64), 1), ["x as float64", "to(torch.float32)"]),
    "image": (nn.Conv1d(1, 2, 2), rows(np.zeros((1, 2)), 1), ["x as float64 of shape (4, 1, 2)"]),
    "label": (LINEAR, rows(np.zeros(4, np.float32), 1.0), ["labels as float32 of shape (4,)", "labels are int64"]),
    "short label": (LINEAR, rows(np.zeros(4, np.float32), np.int32(1)), ["labels as int32", "labels are int64"]),
    "ids": (IDS, rows(np.zeros(1, np.float32), 1), ["x as float32 of shape (4, 1)", "Input ids are int64"]),
}


@pytest.mark.parametrize("case", CASES)
def test_error_names_the_tensor_and_the_remedy(case, tmp_path):
    layer, data, texts = CASES[case]
    with pytest.raises(RuntimeError) as caught:
        regression_trainer(tmp_path, Reads(layer), train_dataset=data).train()
    [note] = caught.value.__notes__
    assert all(text in note for text in texts), note


@pytest.mark.parametrize(
    ("loss", "label", "text"),
    [
        (nn.functional.binary_cross_entropy, torch.ones(2, dtype=torch.float64), "labels as float64 of shape (4, 2)"),
        (nn.functional.binary_cross_entropy_with_logits, torch.ones(2, dtype=torch.int64), "floating-point targets"),
    ],
)
def test_targets_of_a_binary_loss_are_named(loss, label, text, tmp_path):
    model = Reads(nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()), loss)
    with pytest.raises(RuntimeError) as caught:
        regression_trainer(tmp_path, model, train_dataset=rows(np.zeros(4, np.float32), label)).train()
    assert any(text in note for note in caught.value.__notes__)


def test_other_errors_have_no_note(tmp_path):
    model = Reads(nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        regression_trainer(tmp_path, model, train_dataset=rows(np.zeros(4, np.float32), 1)).train()
    assert not [note for note in getattr(caught.value, "__notes__", ()) if "float" in note]
