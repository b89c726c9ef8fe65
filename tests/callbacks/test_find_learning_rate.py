"""Searching for a learning rate."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import FindLearningRate, Trainer, TrainingArguments
from trainbus.callbacks.optimizer.find_learning_rate import steepest
from trainbus.events.errors import ArgumentError, NonFiniteError


def searched(folder: Path, finder: FindLearningRate, **options: Any) -> Trainer:
    torch.manual_seed(0)
    rows = torch.randn(800, 10)
    data = TensorDataset(rows, (rows.sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    args = TrainingArguments(str(folder), per_device_train_batch_size=16, disable_tqdm=True, **options)
    return Trainer(
        model, args, train_dataset=data, eval_dataset=data, criterion=nn.CrossEntropyLoss(), callbacks=[finder]
    )


def test_the_rate_climbs_geometrically_and_the_run_ends_when_the_loss_diverges(tmp_path: Path) -> None:
    finder = FindLearningRate(1e-5, 10.0, steps=100)
    trainer = searched(tmp_path, finder)
    trainer.train()
    ratios = [later / earlier for earlier, later in zip(finder.rates, finder.rates[1:])]
    assert all(math.isclose(ratio, (10 / 1e-5) ** (1 / 99)) for ratio in ratios)
    assert len(finder.losses) == len(finder.rates) < 100
    assert finder.losses[-1] > 4 * min(finder.losses)
    assert "diverges" in trainer.control.why("training_stop")


def test_the_suggestion_trains_better_than_rates_far_from_it(tmp_path: Path) -> None:
    finder = FindLearningRate(1e-5, 10.0)
    searched(tmp_path, finder).train()
    ends = {}
    for factor in (0.001, 1.0, 300.0):
        trainer = searched(tmp_path, finder, learning_rate=finder.suggestion * factor, max_steps=40)
        trainer.remove_callback(finder)
        ends[factor] = trainer.train().training_loss
    assert ends[1.0] < min(ends[0.001], ends[300.0])


def test_the_weights_are_unchanged_and_no_evaluation_or_save_ran(tmp_path: Path) -> None:
    trainer = searched(tmp_path, FindLearningRate(), eval_strategy="steps", eval_steps=5, save_steps=5)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert all(torch.equal(weight, old) for weight, old in zip(trainer.model.parameters(), before))
    assert not any("eval_loss" in entry for entry in trainer.state.log_history)
    assert not [*tmp_path.glob("checkpoint-*")]


def test_all_rates_are_tried_where_the_loss_stays_small(tmp_path: Path) -> None:
    finder = FindLearningRate(1e-7, 1e-5, steps=10)
    assert searched(tmp_path, finder).train().global_step == 10
    assert len(finder.rates) == 10


def test_the_steepest_fall_before_the_minimum_is_taken() -> None:
    rates = [10.0**power for power in range(-6, 2)]
    assert steepest(rates, [1.0, 1.0, 0.9, 0.5, 0.4, 0.39, 2.0, 0.1 + 9]) == rates[2]


def test_too_few_losses_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="Set a lower `start`"):
        steepest([0.1, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    "options",
    [{"start": 0.0}, {"start": 1.0, "end": 0.1}, {"steps": 3}, {"smoothing": 1.0}, {"diverged": 1.0}],
    ids=str,
)
def test_impossible_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="FindLearningRate"):
        FindLearningRate(**options)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("event", ["on_train_begin", "on_gradients", "on_step_end", "on_train_end"])
def test_an_error_in_the_test_restores_the_weights_and_frees_the_copy(
    event: str, error: type[BaseException], tmp_path: Path
) -> None:
    finder = FindLearningRate(1e-3, 1.0, steps=10)
    trainer = searched(tmp_path, finder)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]

    def fails(run: Any) -> None:
        if event.startswith("on_train") or run.state.global_step == 3:
            raise error

    trainer.on(event, fails)
    with pytest.raises(error):
        trainer.train()
    assert all(torch.equal(weight, old) for weight, old in zip(trainer.model.parameters(), before))
    assert (finder._weights, finder._holders) == ({}, [])
    trainer.evaluate()  # an error outside of a test changes nothing


def test_an_error_in_an_evaluation_changes_no_weights(tmp_path: Path) -> None:
    trainer = searched(tmp_path, FindLearningRate())
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.on("on_prediction_step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate()
    assert all(torch.equal(weight, old) for weight, old in zip(trainer.model.parameters(), before))


class Centers(nn.Module):
    """A criterion with parameters and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(2, 2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(outputs @ self.centers, labels)


@pytest.mark.parametrize("lazy", [False, True])
def test_the_model_and_the_criterion_are_restored(lazy: bool, tmp_path: Path) -> None:
    model, criterion = nn.LazyLinear(2) if lazy else nn.Linear(4, 2), Centers()
    before = copy.deepcopy((criterion.state_dict(), {} if lazy else model.state_dict()))
    rows = TensorDataset(torch.randn(48, 4), torch.randint(0, 2, (48,)))
    args = TrainingArguments(str(tmp_path), use_cpu=True, max_steps=8, save_strategy="no")
    finder = FindLearningRate(steps=8)
    Trainer(model, args, train_dataset=rows, criterion=criterion, callbacks=[finder]).train()
    assert len(finder.rates) == 8
    after = (criterion.state_dict(), {} if lazy else model.state_dict())
    assert all(torch.equal(was[name], now[name]) for was, now in zip(before, after) for name in was)
