"""A value that is no loss, and a parameter group that the schedule does not know: the error names the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.trainers import regression_trainer
from trainbus.events import SubscriptionError
from trainbus.events.errors import ModelError


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda loss: None, "None"),
        (lambda loss: 3.0, "3.0"),
        (lambda loss: [loss], "a list"),
        (lambda loss: torch.stack([loss, loss]), r"a tensor of shape \(2,\)"),
        (lambda loss: loss[None], r"a tensor of shape \(1,\)"),
    ],
)
def test_a_replaced_loss_that_is_no_scalar_tensor_is_refused(change: Any, shown: str, tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, args={"max_steps": 1})
    run.on("on_loss", lambda run: setattr(run, "loss", change(run.loss)))
    with pytest.raises(
        SubscriptionError, match=f"A handler of `on_loss` set `run.loss` to {shown}. Set it to a scalar"
    ):
        run.train()


@pytest.mark.parametrize(("loss", "shown"), [(None, "None"), (0.5, "0.5"), ((1, 2), "a tuple")])
def test_a_loss_that_is_no_tensor_is_refused(loss: Any, shown: str, tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, args={"max_steps": 1})
    run.compute_loss = lambda *arguments, **options: loss
    with pytest.raises(ModelError, match=f"The loss is {shown}, not a tensor. Return the tensor from the criterion"):
        run.train()


@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_a_parameter_group_that_the_schedule_does_not_know_is_explained(kind: str, tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, args={"max_steps": 2, "lr_scheduler_type": kind})
    run.on("on_train_begin", lambda optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}))
    with pytest.raises(ValueError, match="zip") as caught:
        run.train()
    assert "parameter groups, but the schedule was built for" in caught.value.__notes__[0]
