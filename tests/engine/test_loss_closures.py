"""A warning of modules of a loss function that nothing trains, and a note about datasets that are batched already."""

from __future__ import annotations

import functools
from typing import Any

import datasets
import pytest
import torch
from torch import nn

from support.trainers import net_trainer, regression_trainer
from trainbus import Trainer

HEAD = nn.Linear(1, 1)
WARNING = "The loss function uses the module Linear"


def with_global(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(HEAD(logits.reshape(-1, 1)).squeeze(-1), labels.float())


def with_closure(head: nn.Module) -> Any:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(head(logits.reshape(-1, 1)).squeeze(-1), labels.float())

    return loss


def with_default(logits: torch.Tensor, labels: torch.Tensor, head: nn.Module = HEAD) -> torch.Tensor:
    return with_closure(head)(logits, labels)


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).squeeze(-1)


class Holder:
    """A plain object with a module."""

    def __init__(self) -> None:
        self.head = nn.Linear(1, 1)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.inner(logits, labels)

    def inner(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return with_closure(self.head)(logits, labels)


class CallableHolder(Holder):
    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(logits, labels)


HOLDER = Holder()


def with_container(held: Any, take: Any) -> Any:
    return lambda logits, labels: with_closure(take(held))(logits, labels)


LOSSES = {
    "bound method": Holder().loss,
    "callable object": CallableHolder(),
    "dict of lists": with_container({"a": [nn.Linear(1, 1)]}, lambda held: held["a"][0]),
    "attribute of an object": lambda logits, labels: with_closure(HOLDER.head)(logits, labels),
    "function that calls a function": lambda logits, labels: with_global(logits, labels),
    "global": with_global,
    "closure": with_closure(nn.Linear(1, 1)),
    "default": with_default,
    "partial": functools.partial(with_closure(nn.Linear(1, 1))),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_an_untrained_module_of_a_loss_function_logs_one_warning(loss, tmp_path, caplog):
    run = regression_trainer(tmp_path, Logits(), criterion=loss)
    run.train()
    run.train()
    assert caplog.text.count(WARNING) == 1


def test_a_trained_or_frozen_module_causes_no_warning(tmp_path, caplog):
    model, frozen = Logits(), nn.Linear(1, 1).requires_grad_(False)
    model.head = nn.Linear(1, 1)
    held = nn.Linear(1, 1)
    given = Logits()
    optimizer = torch.optim.SGD([*given.parameters(), *held.parameters()], lr=0.1)
    regression_trainer(tmp_path, model, criterion=with_closure(model.head)).train()
    regression_trainer(tmp_path, Logits(), criterion=with_closure(frozen)).train()
    regression_trainer(tmp_path, given, criterion=with_closure(held), optimizers=(optimizer, None)).train()
    assert WARNING not in caplog.text


class OwnLoss(Trainer):
    """Its loss uses a module that is an attribute of the trainer."""

    head: nn.Module

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        logits = model(inputs["x"])
        return with_closure(self.head)(logits, inputs["labels"])


@pytest.mark.parametrize(("training", "warnings"), [(True, 1), (False, 0)])
def test_an_overridden_compute_loss_with_a_trained_module_logs_one_warning(training, warnings, tmp_path, caplog):
    given = regression_trainer(tmp_path, Logits(), args={"remove_unused_columns": False})
    run = OwnLoss(given.model, given.args, train_dataset=given.train_dataset)
    run.head = nn.Linear(1, 1).train(training)
    run.train()
    assert caplog.text.count(WARNING) == warnings
    if warnings:
        assert "To train and save them without clipping" in caplog.text


@pytest.mark.parametrize("constant", [True, False], ids=["class weights", "a count"])
def test_a_resume_warns_of_other_class_weights_than_in_the_checkpoint(constant, tmp_path, caplog):
    class Weighted(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.register_buffer("weight", torch.tensor([1.0, value]))

        def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            if not constant and self.training:
                self.weight += 1
            return self.weight[0] * nn.functional.mse_loss(logits, labels.float())

    args = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    regression_trainer(tmp_path, Logits(), criterion=Weighted(2.0), args=args).train()
    for value, warned in ((2.0, False), (3.0, constant)):
        caplog.clear()
        again = regression_trainer(tmp_path, Logits(), criterion=Weighted(value), args=args)
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        told = "buffer `weight` of the checkpoint: [1, 2]. The program has [1, 3]"
        assert (told in caplog.text) is warned
        assert warned or "resumes with the buffer" not in caplog.text


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_the_error_of_a_batched_dataset_says_what_to_set(tmp_path):
    plain = datasets.Dataset.from_dict({"x": [[0.0] * 4] * 24, "labels": [0] * 24})
    batched = datasets.Dataset.from_dict({"x": [plain[:8]["x"]] * 3, "labels": [plain[:8]["labels"]] * 3})
    given = {"model": Classes(), "eval_dataset": None}
    with pytest.raises(RuntimeError) as caught:
        net_trainer(tmp_path, train_dataset=batched, per_device_train_batch_size=1, **given).train()
    assert any("`per_device_train_batch_size=8`" in note for note in caught.value.__notes__)
    net_trainer(tmp_path, train_dataset=plain, per_device_train_batch_size=8, **given).train()
