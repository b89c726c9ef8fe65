"""`do_export`: the exported file predicts as the trained model does, for other batch sizes too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainbus
from support.data import net_samples, sentences
from support.models import bert
from support.trainers import net_trainer
from trainbus.events import TrainbusError


def loaded(path: Path) -> Any:
    return torch.export.load(path).module()


def test_do_export_writes_the_trained_model(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, do_export=True)
    trainer.train()
    program = loaded(tmp_path / "export" / "model.pt2")
    x = torch.stack([row["x"] for row in net_samples(7, seed=3)])
    trainer.model.eval()
    with torch.no_grad():
        assert torch.equal(program(x=x)["logits"], trainer.model(x)["logits"])


def test_the_exported_model_is_the_best_one(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "loss", "greater_is_better": True}  # the first step has the greatest
    trainer = net_trainer(tmp_path, do_export=True, save_strategy="best", max_steps=2, **options)
    trainer.train()
    assert trainer.state.best_global_step == 1
    program = loaded(tmp_path / "export" / "model.pt2")
    assert torch.equal(program.state_dict()["head.weight"], trainer.model.head.weight)


def test_a_script_exports_without_training(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=1)
    model = bert(dropout=0.0)
    trainer = trainbus.Trainer(model, args, eval_dataset=sentences(4))
    path = trainer.export_model(str(tmp_path / "inference"))
    assert path == tmp_path / "inference" / "model.pt2"
    rows = {"input_ids": torch.randint(0, 50, (5, 9)), "attention_mask": torch.ones(5, 9, dtype=torch.long)}
    model.eval()
    with torch.no_grad():
        expected = model(**rows).logits
        assert torch.allclose(loaded(path)(**rows).logits, expected, atol=1e-6)


def test_modes_are_restored_and_tuples_work(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[2].eval()
    data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,)))
    args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True)
    trainer = trainbus.Trainer(model, args, train_dataset=data, criterion=nn.CrossEntropyLoss())
    path = trainer.export_model()
    assert [model.training, model[1].training, model[2].training] == [True, True, False]
    assert path is not None
    assert loaded(path)(torch.randn(6, 3)).shape == (6, 2)


class Branches(nn.Module):
    """Its forward depends on a value, so it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else -self.linear(x)


def test_a_model_that_cannot_be_traced_is_named(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, model=Branches(), criterion=nn.MSELoss())
    with pytest.raises(TrainbusError, match=r"Branches cannot be exported: torch\.export cannot trace its forward"):
        trainer.export_model(inputs={"x": torch.randn(2, 6)})
