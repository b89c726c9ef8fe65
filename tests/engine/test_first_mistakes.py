"""Mistakes of a first program: each error names the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.data import points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import KeepBest, Metrics, Packing, Trainer, TrainingArguments
from trainbus.events.errors import ArgumentError, CheckpointError, ModelError, SubscriptionError


class Labelled(nn.Module):
    """A model with the parameter `label`, as a CSV file names the column."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> Any:
        return {"loss": (self.linear(x[:, None]).squeeze(1) - label).square().mean()}


class Targets(nn.Module):
    """A model with labels under a name that trainbus does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        return {"loss": (self.linear(x[:, None]).squeeze(1) - target).square().mean()}


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    return TrainingArguments(str(folder), use_cpu=True, report_to="none", max_steps=2, **options)


def test_a_column_that_the_collator_renames(tmp_path: Path) -> None:
    trainer = Trainer(Labelled(), arguments(tmp_path), train_dataset=[{"x": 1.0, "label": 2.0}] * 8)
    with pytest.raises(ModelError, match=r"The collator names the column 'label' 'labels': use this name in forward\."):
        trainer.train()


def test_a_model_without_a_loss(tmp_path: Path) -> None:
    rows = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
    with pytest.raises(ModelError, match=r"pass a loss, such as `criterion=nn\.CrossEntropyLoss\(\)`"):
        Trainer(nn.Linear(4, 2), arguments(tmp_path), train_dataset=rows).train()


def test_labels_that_have_another_name(tmp_path: Path) -> None:
    rows = [{"x": 1.0, "target": 2.0}] * 8
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = Trainer(
        Targets(), arguments(tmp_path, **options), train_dataset=rows, eval_dataset=rows, callbacks=[KeepBest("loss")]
    )
    with pytest.raises(ArgumentError, match=r"no labels under the expected names\. Name your labels, as in "):
        trainer.train()


@pytest.mark.parametrize(
    ("inputs", "remedy"),
    [
        (
            {"data_collator": Packing},
            r"`data_collator` is the class Packing\. Pass an instance: `data_collator=Packing\(\)`",
        ),
        ({"compute_metrics": Metrics}, r"`compute_metrics` is the class Metrics\. Pass an instance"),
    ],
)
def test_a_class_in_place_of_an_instance(inputs: dict[str, Any], remedy: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=remedy):
        Trainer(Regression(), arguments(tmp_path), train_dataset=points(8), **inputs)


def test_a_collator_among_the_callbacks(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionError, match=r"To use it as a collator, pass it as `data_collator`\."):
        regression_trainer(tmp_path, Regression(), train_dataset=points(8), callbacks=[Packing()])


def test_names_of_metrics_in_a_list() -> None:
    with pytest.raises(ArgumentError, match=r"Pass each name by itself: Metrics\('accuracy', 'f1'\)\."):
        Metrics(["accuracy", "f1"])


@pytest.mark.parametrize("wanted", [3, 2.5, ["checkpoint-2"], {"step": 2}])
def test_a_checkpoint_of_a_wrong_type(wanted: Any, tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, Regression(), train_dataset=points(8))
    with pytest.raises(ArgumentError, match=r"is not a checkpoint\. Pass the folder of a checkpoint, or True"):
        trainer.train(resume_from_checkpoint=wanted)


def saved(folder: Path) -> None:
    args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    regression_trainer(folder, Regression(), args=args, train_dataset=points(8)).train()


REMEDIES: dict[str, tuple[Callable[[Path], str], str]] = {
    "the output folder": (str, r"It contains checkpoints\. Resume from .*checkpoint-2, which is good\."),
    "the name of a checkpoint": (lambda folder: "checkpoint-2", r"Did you mean the folder '.*checkpoint-2'\?"),
    "a word": (lambda folder: "latest", r"To resume from the newest good checkpoint of `output_dir`, pass True\."),
    "auto, misspelt": (lambda folder: "atuo", r"Did you mean 'auto'"),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_a_folder_that_is_no_checkpoint(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, remedy = REMEDIES[name]
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "runs" / "first")
    again = regression_trainer(tmp_path / "runs" / "first", Regression(), train_dataset=points(8))
    with pytest.raises(CheckpointError, match=remedy):
        again.train(resume_from_checkpoint=wanted(tmp_path / "runs" / "first"))


class Ages(nn.Module):
    """A model with a parameter that no column has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, agex: torch.Tensor, labels: torch.Tensor) -> Any:
        return {"loss": self.linear(agex[:, None]).square().mean()}


def test_a_misspelled_parameter_of_forward(tmp_path: Path) -> None:
    rows = [{"age": 1.0, "city": "Rome", "label": 0}] * 8
    message = r"not take: age, city\. If 'agex' means the column 'age', give both the same name\."
    with pytest.raises(ModelError, match=message):
        Trainer(Ages(), arguments(tmp_path), train_dataset=rows).train()


class Layered(nn.Module):
    """A model that calls one layer with its input."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return {"loss": self.layer(x).square().mean()}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(2, 2), (2,)),
        (nn.Linear(2, 2, bias=False), (2,)),
        (nn.Conv1d(2, 2, 1), (2, 3)),
        (nn.Conv2d(2, 2, 1, bias=False), (2, 3, 3)),
        (nn.LayerNorm(2), (2,)),
        (nn.BatchNorm1d(2), (2,)),
        (nn.TransformerEncoderLayer(2, 1, 8, batch_first=True), (3, 2)),
    ],
    ids=["linear", "linear-without-bias", "conv1d", "conv2d", "layer-norm", "batch-norm", "transformer"],
)
def test_integers_into_a_layer(layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path) -> None:
    rows = [{"x": torch.ones(shape, dtype=dtype), "labels": 0}] * 8
    with pytest.raises(RuntimeError) as caught:
        Trainer(Layered(layer), arguments(tmp_path), train_dataset=rows).train()
    note = "\n".join(caught.value.__notes__)
    name = str(dtype).removeprefix("torch.")
    assert f"The batch holds x as {name} of shape {(8, *shape)}. Layers such as Linear need floating" in note


def test_integers_in_a_batch_of_tensors(tmp_path: Path) -> None:
    rows = TensorDataset(torch.ones(8, 4, dtype=torch.long), torch.zeros(8, dtype=torch.long))
    with pytest.raises(RuntimeError) as caught:
        Trainer(nn.Linear(4, 2), arguments(tmp_path), train_dataset=rows, criterion=nn.CrossEntropyLoss()).train()
    assert "The batch holds [0] as int64 of shape (8, 4). Layers" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("method", ["save_model", "export_model"])
@pytest.mark.parametrize("folder", [5, Regression()])
def test_a_folder_that_is_no_path(method: str, folder: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=rf"{method}\(output_dir=.*is not a path. Pass the folder as a text"):
        getattr(regression_trainer(tmp_path), method)(folder)


class Loses(nn.Module):
    """A model whose loss loses its gradient in `ending`."""

    def __init__(self, ending: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.ending = ending
        self.kept = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> Any:
        return {"loss": self.ending(self.linear(x[:, None]).square().mean())}


@pytest.mark.parametrize("end", [torch.Tensor.item, lambda loss: int(loss.item())])
def test_a_loss_that_is_a_number(tmp_path: Path, end: Callable[[torch.Tensor], Any]) -> None:
    trainer = Trainer(Loses(end), arguments(tmp_path), train_dataset=[{"x": 1.0}] * 8)
    with pytest.raises(
        ModelError, match=r"Loses returned the loss [\d.]+, which is a number without a gradient\. Return"
    ):
        trainer.train()


def notes_of(trainer: Trainer) -> str:
    with pytest.raises(RuntimeError) as caught:
        trainer.train()
    return " ".join(getattr(caught.value, "__notes__", [])) + str(caught.value)


def test_a_loss_without_a_gradient(tmp_path: Path) -> None:
    for end in (torch.Tensor.detach, lambda loss: torch.tensor(loss.item())):
        trainer = Trainer(Loses(end), arguments(tmp_path), train_dataset=[{"x": 1.0}] * 8)
        assert "The loss depends on no trainable weight." in notes_of(trainer)


def test_a_graph_that_is_used_twice(tmp_path: Path) -> None:
    model = Loses(lambda loss: loss)

    def add(loss: torch.Tensor) -> torch.Tensor:
        model.kept = model.kept + loss
        return model.kept.sum()

    model.ending = add
    trainer = Trainer(model, arguments(tmp_path), train_dataset=[{"x": 1.0}] * 8, eval_dataset=None)
    assert "A tensor of an earlier step is part of the loss" in notes_of(trainer)
