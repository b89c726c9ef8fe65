"""Inputs that cannot work are refused with the cause: losses, data, labels, triggers and frozen models."""

from __future__ import annotations

from typing import Any

import pandas
import pytest
import torch
from torch import nn

from support.trainers import regression_trainer
from trainbus import Freeze, at, every
from trainbus.events.errors import ArgumentError, DataError, ModelError


def yields(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    yield nn.functional.mse_loss(logits, labels)


async def waits(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    return nn.functional.mse_loss(logits, labels)


@pytest.mark.parametrize(("criterion", "kind"), [(yields, "generator function"), (waits, "coroutine function")])
def test_a_function_that_returns_no_loss_is_refused(criterion, kind, tmp_path):
    with pytest.raises(ArgumentError, match=f"`criterion` is a {kind}, so a call returns no result"):
        regression_trainer(tmp_path, criterion=criterion)


def test_a_series_is_refused_as_a_dataset(tmp_path):
    with pytest.raises(ArgumentError, match="`train_dataset` is a pandas Series"):
        regression_trainer(tmp_path, train_dataset=pandas.Series([1.0, 2.0]))


def test_a_tensor_without_labels_is_refused_for_a_criterion(tmp_path):
    with pytest.raises(ArgumentError, match="`train_dataset` is a tensor without labels for `criterion`"):
        regression_trainer(tmp_path, train_dataset=torch.zeros(4, 3), criterion=nn.functional.mse_loss)


@pytest.mark.parametrize("sides", [(at(3), at(4)), (at(3), every(2)), (every(4) & every(6), at(13))])
def test_conditions_without_a_common_step_are_refused(sides):
    with pytest.raises(ArgumentError, match="can never be due: no step fits both sides"):
        sides[0] & sides[1]


def test_conditions_with_a_common_step_are_accepted():
    assert repr(at(3, 4) & every(2)) == "at(3, 4) & every(2)"
    assert repr(at(3) & every("10min")).startswith("at(3) & ")


def test_freezing_every_parameter_is_refused_and_undone(tmp_path):
    run = regression_trainer(tmp_path, callbacks=[Freeze(".*")])
    with pytest.raises(ModelError, match=r"Freeze\('\.\*'\) freezes every parameter of Regression"):
        run.train()
    assert all(weight.requires_grad for weight in run.model.parameters())


def test_the_error_of_a_negative_label_says_which_labels_are_valid(tmp_path):
    data = torch.utils.data.TensorDataset(torch.zeros(8, 3), torch.tensor([0, 1, 0, -5, 1, 0, 1, 0]))
    run = regression_trainer(tmp_path, nn.Linear(3, 2), train_dataset=data, criterion=nn.functional.cross_entropy)
    with pytest.raises(DataError, match="Make them 0 or more, or -100, which is ignored") as caught:
        run.train()
    assert "number of classes of the model to" not in str(caught.value)
