"""The memory of an evaluation with metrics by batch does not depend on the number of rows."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from trainbus import Metrics, Trainer, TrainingArguments
from trainbus.engine.loss import signature

CLASSES = 1000


class Drawn(Dataset):
    """Rows that exist only while they are read."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index % 7)), "labels": torch.tensor(index % CLASSES)}


class Wide(nn.Module):
    """A classifier whose logits are large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def right(prediction: Any, compute_result: bool = True) -> dict[str, float]:
    return {"right": 1.0}


def _tensors() -> list[torch.Tensor]:
    return [each for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)]


def most_bytes(folder: Path, rows: int, metrics: Any, **options: Any) -> int:
    """Return the most bytes of live tensors at any batch of an evaluation."""
    gc.collect()
    tensors_before = {id(each) for each in _tensors()}
    args = TrainingArguments(str(folder), per_device_eval_batch_size=16, use_cpu=True, **options)
    trainer = Trainer(Wide(), args, eval_dataset=Drawn(rows), compute_metrics=metrics)
    sizes: list[int] = []

    def note() -> None:
        tensors = [each.untyped_storage() for each in _tensors() if id(each) not in tensors_before]
        storages = {each.data_ptr(): each.nbytes() for each in tensors}
        sizes.append(sum(storages.values()))

    trainer.on("on_prediction_step", note)
    trainer.evaluate()
    return max(sizes)


@pytest.mark.parametrize(
    ("metrics", "options"),
    [(Metrics("accuracy"), {}), (right, {"batch_eval_metrics": True})],
    ids=["metrics by name", "batch_eval_metrics"],
)
def test_eight_times_the_rows_take_no_more_memory(tmp_path: Path, metrics: Any, options: dict[str, Any]) -> None:
    once, eight = (most_bytes(tmp_path, rows, metrics, **options) for rows in (128, 1024))
    losses = (1024 - 128) * 4  # the loss of each row stays, for a mean that is equal to that of transformers
    assert eight - once <= losses
    assert losses < 0.05 * once


def test_the_count_sees_predictions_that_are_kept(tmp_path: Path) -> None:
    once, eight = (most_bytes(tmp_path, rows, right) for rows in (128, 1024))
    assert eight - once > 0.9 * (1024 - 128) * CLASSES * 4


def test_an_evaluation_reads_the_signature_of_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = TrainingArguments(str(tmp_path), per_device_eval_batch_size=16, use_cpu=True)
    trainer = Trainer(Wide(), args, eval_dataset=Drawn(256))
    trainer.evaluate()
    read: list[Any] = []
    real = signature.inspect.signature
    monkeypatch.setattr(signature.inspect, "signature", lambda *given, **options: read.append(1) or real(*given))
    trainer.evaluate()
    assert len(read) < 16, "one signature per batch"
