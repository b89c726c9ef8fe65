"""A schedule that the program sets as `trainer.lr_scheduler` is the schedule of the run, as in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from transformers.optimization import GreedyLR as TheirGreedyLR

import trainbus
from support.data import points, sentences
from support.models import Regression, bert
from support.outcomes import history, same_weights, weights
from support.trainers import hushed, regression_trainer
from trainbus import MetricSchedule
from trainbus.events.errors import ArgumentError


class Plain:
    """Creates the schedule of the arguments."""


class Guarded:
    """Creates a schedule if there is none, as the examples of transformers do."""

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, lambda step: 0.8**step)
        return self.lr_scheduler


class Fresh:
    """Creates a schedule for each training."""

    def create_scheduler(self, num_training_steps, optimizer=None):
        optimizer = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = LambdaLR(optimizer, lambda step: 1 - step / num_training_steps)
        return self.lr_scheduler


def sets(trainer: Any) -> None:
    trainer.create_optimizer()
    trainer.lr_scheduler = StepLR(trainer.optimizer, 2, 0.5)


def once(trainer: Any) -> None:
    trainer.train()


def twice(trainer: Any) -> None:
    trainer.train()
    trainer.train()


def sets_and_trains(trainer: Any) -> None:
    sets(trainer)
    trainer.train()


def sets_and_trains_twice(trainer: Any) -> None:
    sets(trainer)
    twice(trainer)


def sets_between(trainer: Any) -> None:
    trainer.train()
    trainer.lr_scheduler = StepLR(trainer.optimizer, 1, 0.5)
    trainer.lr_scheduler.step()
    trainer._created_lr_scheduler = False  # else transformers drops the schedule
    trainer.train()


def forgets_between(trainer: Any) -> None:
    trainer.train()
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.train()


def sets_and_resumes(trainer: Any) -> None:
    sets(trainer)
    trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-3")


def run(library: Any, mixin: type, folder: Path, *does: Callable[[Any], None]) -> Any:
    for do in does:
        with hushed():
            args = library.TrainingArguments(
                str(folder / library.__name__),
                **{"per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 1, "learning_rate": 1e-2},
                **{"save_steps": 3, "use_cpu": True, "disable_tqdm": True, "report_to": "none"},
            )
            cls = type(mixin.__name__, (mixin, library.Trainer), {})
            trainer = cls(model=bert(), args=args, train_dataset=sentences(22))
            do(trainer)
    return trainer


CASES = [
    (Plain, sets_and_trains),
    (Plain, sets_and_trains_twice),
    (Plain, twice),
    (Plain, sets_between),
    (Plain, forgets_between),
    (Guarded, twice),
    (Guarded, forgets_between),
    (Guarded, sets_and_trains),
    (Fresh, twice),
    (Fresh, forgets_between),
]


@pytest.mark.parametrize(("mixin", "do"), CASES, ids=lambda value: value.__name__)
def test_rates_are_those_of_transformers(mixin: type, do: Callable[[Any], None], tmp_path: Path) -> None:
    theirs, ours = (run(library, mixin, tmp_path, do) for library in (transformers, trainbus))
    rates = [[entry["learning_rate"] for entry in history(each) if "loss" in entry] for each in (theirs, ours)]
    assert rates[0] == rates[1]
    assert same_weights(weights(theirs.model), weights(ours.model))


def test_schedule_resumes(tmp_path: Path) -> None:
    whole = run(trainbus, Plain, tmp_path / "whole", sets_and_trains)
    resumed = run(trainbus, Plain, tmp_path / "resumed", sets_and_trains, sets_and_resumes)
    assert same_weights(weights(whole.model), weights(resumed.model))


def test_schedule_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path)
    trainer.lr_scheduler = StepLR(torch.optim.SGD(trainer.model.parameters(), lr=1.0), 2)
    with pytest.raises(ArgumentError, match="The schedule StepLR belongs to an optimizer"):
        trainer.train()


@pytest.mark.filterwarnings("error")
def test_preview_has_the_rates_of_the_schedule(tmp_path: Path) -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    given = regression_trainer(tmp_path, model, optimizers=(optimizer, StepLR(optimizer, 2)), args={"max_steps": 3})
    assert given.preview().learning_rates["last"] == pytest.approx(0.008)
    trainer = regression_trainer(tmp_path, args={"learning_rate": 0.08, "max_steps": 5})
    sets(trainer)
    assert trainer.preview().learning_rates == {"first": 0.08, "highest": 0.08, "last": 0.02}
    trainer.train()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.02


# Schedules that step with a metric.


def plateau(optimizer: Any) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(optimizer, patience=0, factor=0.5)


class OptionalMetric(StepLR):
    """Steps after each optimizer step, because its metric is optional."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer, 1, 0.8)

    def step(self, metrics: float | None = None) -> None:
        super().step()


class OptionalPlateau(ReduceLROnPlateau):
    """Steps with a metric, although the signature has a default, because it is a `ReduceLROnPlateau`."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer, patience=0, factor=0.5)

    def step(self, metrics: float = 0.0, epoch: int | None = None) -> None:
        super().step(metrics)


class CreatesPlateau:
    """Creates a schedule that needs a metric."""

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = plateau(self.optimizer if optimizer is None else optimizer)
        return self.lr_scheduler


def sets_plateau(trainer: Any) -> None:
    trainer.create_optimizer()
    trainer.lr_scheduler = plateau(trainer.optimizer)
    trainer.train()


METRIC_CASES = {
    "passed": (Plain, once, plateau),
    "passed greedy": (Plain, once, lambda optimizer: TheirGreedyLR(optimizer, patience=0)),
    "passed, optional metric": (Plain, once, OptionalMetric),
    "passed, subclass of plateau": (Plain, once, OptionalPlateau),
    "created": (CreatesPlateau, once, None),
    "created twice": (CreatesPlateau, twice, None),
    "set": (Plain, sets_plateau, None),
}


def metric_run(library: Any, mixin: type, folder: Path, make: Any, *callbacks: Any, **args: Any) -> Any:
    """Build a trainer that evaluates after each step. If `make` is given, it builds the schedule that is passed."""
    model = Regression()
    given = library.TrainingArguments(
        str(folder / library.__name__),
        **{"per_device_train_batch_size": 4, "max_steps": 8, "learning_rate": 1.5, "optim": "sgd", "logging_steps": 1},
        **{"save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "report_to": "none"},
        **{"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", **args},
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5)
    options = {} if make is None else {"optimizers": (optimizer, make(optimizer))}
    cls = type(mixin.__name__, (mixin, library.Trainer), {})
    data = {"train_dataset": points(16), "eval_dataset": points(8, seed=1)}
    return cls(model=model, args=given, callbacks=list(callbacks), **data, **options)


@pytest.mark.parametrize("case", METRIC_CASES)
def test_own_schedules_step_with_a_metric_as_in_transformers(case: str, tmp_path: Path) -> None:
    mixin, do, make = METRIC_CASES[case]
    rates = []
    for library in (transformers, trainbus):
        with hushed():
            trainer = metric_run(library, mixin, tmp_path, make)
            do(trainer)
        rates.append([entry["learning_rate"] for entry in history(trainer) if "loss" in entry])
    assert rates[0] == rates[1]
    assert len(set(rates[1])) > 1, "the schedule changes the rate"


def test_own_plateau_follows_the_loss_by_default_and_the_listed_callback(tmp_path: Path) -> None:
    built = metric_run(trainbus, Plain, tmp_path, plateau, metric_for_best_model=None)
    assert built.callbacks["MetricSchedule"].metric == "eval_loss"
    listed = MetricSchedule("f1")
    built = metric_run(trainbus, Plain, tmp_path, plateau, listed)
    assert [each for each in built.callbacks.values() if isinstance(each, MetricSchedule)] == [listed]
    named = metric_run(trainbus, Plain, tmp_path, plateau, lr_scheduler_type="reduce_lr_on_plateau")
    assert sum(isinstance(each, MetricSchedule) for each in named.callbacks.values()) == 1
    assert "MetricSchedule" not in metric_run(trainbus, Plain, tmp_path, OptionalMetric).callbacks
