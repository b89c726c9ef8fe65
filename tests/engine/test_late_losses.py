"""A loss or a label smoothing that is set after construction, and label smoothing that has no effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from support.trainers import regression_trainer
from trainbus import Trainer
from trainbus.events.errors import ArgumentError

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
CLASSES = [row % 3 for row in range(16)]
SMOOTHING = {"label_smoothing_factor": 0.1}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, y: torch.Tensor | None = None) -> Any:
        logits = self.linear(x)
        labels = y if labels is None else labels
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


def rows(name: str = "labels") -> list[dict[str, Any]]:
    return [{"x": x, name: label} for x, label in zip(X, CLASSES)]


def run_of(folder: Any, trainer: type = Trainer, name: str = "labels", **options: Any) -> Any:
    args = {"max_steps": 2, **options.pop("args", {})}
    built = regression_trainer(folder, Classifier(), args=args, train_dataset=rows(name), **options)
    return built if trainer is Trainer else trainer(built.model, built.args, train_dataset=rows(name))


def doubled(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return 2 * nn.functional.cross_entropy(outputs["logits"], labels)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.scale * nn.functional.cross_entropy(logits, labels)


def test_a_loss_function_that_is_set_after_construction_computes_the_loss(tmp_path):
    late = run_of(tmp_path)
    late.compute_loss_func = doubled
    assert late.train().training_loss == run_of(tmp_path, compute_loss_func=doubled).train().training_loss
    late.compute_loss_func = None
    plain = late.evaluate(rows())["eval_loss"]
    late.compute_loss_func = doubled
    assert late.evaluate(rows())["eval_loss"] == pytest.approx(2 * plain)


def test_a_criterion_module_that_is_set_after_construction_is_trained_and_saved(tmp_path):
    late = run_of(tmp_path, args={"save_strategy": "steps", "save_steps": 1})
    late.criterion = Scale()
    late.train()
    again = run_of(tmp_path, criterion=(restored := Scale()), args={"save_strategy": "steps", "save_steps": 1})
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert restored.scale.item() == late.criterion.scale.item() != 1.0


def test_label_smoothing_that_is_set_after_construction_smooths(tmp_path):
    late = run_of(tmp_path)
    late.args.label_smoothing_factor = 0.1
    assert late.train().training_loss == run_of(tmp_path, args=SMOOTHING).train().training_loss


@pytest.mark.parametrize("name", ["criterion", "compute_loss_func"])
@pytest.mark.parametrize("first", ["smoothing", "loss"])
def test_label_smoothing_with_a_loss_function_is_refused_after_construction_too(name, first, tmp_path):
    run = run_of(tmp_path, **({"args": SMOOTHING} if first == "smoothing" else {name: doubled}))
    if first == "smoothing":
        setattr(run, name, doubled)
    else:
        run.args.label_smoothing_factor = 0.1
    with pytest.raises(ArgumentError, match=f"and `{name}` replaces it"):
        run.train()


class Own(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return model(**inputs)["loss"]


class Smooths(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **options)


@pytest.mark.parametrize(
    ("trainer", "name", "warning"),
    [
        (Own, "labels", "`compute_loss` is overridden"),
        (Smooths, "labels", None),
        (Trainer, "labels", None),
        (Trainer, "y", "the batch has no 'labels', only: x, y"),
    ],
)
def test_label_smoothing_without_effect_logs_one_warning(trainer, name, warning, tmp_path, caplog):
    run_of(tmp_path, trainer, name, args=SMOOTHING).train()
    assert caplog.text.count("label_smoothing_factor") == (warning is not None)
    assert (warning or "") in caplog.text


def test_a_prediction_with_metrics_and_without_labels_logs_a_warning(tmp_path, caplog):
    run = run_of(tmp_path, compute_metrics=lambda prediction: {"one": 1.0}, args={"label_names": ["targets"]})
    run.predict(rows())
    assert "compute_metrics is not called: the batches have no labels under the expected names (targets)" in caplog.text
    caplog.clear()
    run.predict(rows())
    run_of(tmp_path, args={"label_names": ["targets"]}).predict(rows())
    assert "compute_metrics" not in caplog.text


def test_the_remedy_for_missing_labels_names_a_parameter_of_the_model(tmp_path, caplog):
    run = run_of(tmp_path, compute_metrics=lambda prediction: {"one": 1.0})
    run.model.forward = lambda inputs, target: {"logits": inputs}
    run = Trainer(run.model, run.args)
    run.evaluate([{"inputs": torch.ones(2), "target": torch.ones(2)}])
    assert "TrainingArguments(label_names=['target'])" in caplog.text
