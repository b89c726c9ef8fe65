"""A schedule that the program sets as `trainer.lr_scheduler` is the schedule of the run, as in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.optim.lr_scheduler import LambdaLR, StepLR

import trainbus
from support.data import sentences
from support.models import Regression, bert
from support.outcomes import history, same_weights, weights
from support.trainers import hushed, regression_trainer
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
