"""A signal at any place of a step: the step completes and is saved, and the run resumes in every bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Callback, Stage, default_data_collator, order

STEPS = 8
STEP = 5
"""In this one the signal comes, or right after it."""


class Somewhere(Callback):
    """Calls something once, in one of the places of a step."""

    def __init__(self, place: str = "", does: Callable[[], None] = lambda: None, nth: int = 1) -> None:
        self.place, self.does, self.nth = place, does, nth
        self.calls = 0
        self.step = 0

    def at(self, place: str, step: int) -> None:
        if place == self.place and step == STEP:
            self.calls += 1
            if self.calls == self.nth:
                self.does()

    def on_step_begin(self, state: Any) -> None:
        self.step = state.global_step + 1
        self.at("step begin", self.step)

    def on_loss(self, loss: Any) -> None:
        loss.register_hook(lambda gradient: self.at("backward", self.step))

    def on_substep_end(self) -> None:
        self.at("between the batches", self.step)

    def on_gradients(self) -> None:
        self.at("gradients", self.step)

    def on_optimizer_step(self) -> None:
        self.at("update", self.step)

    @order(Stage.RELEASE)
    def on_step_end(self) -> None:
        self.at("after others heard of the step", self.step)

    def on_log(self) -> None:
        self.at("log", self.step)

    def on_prediction_step(self) -> None:
        self.at("evaluation", self.step)

    def on_save_begin(self) -> None:
        self.at("save", self.step)


class Calling(Net):
    """Says when it is called."""

    somewhere: Somewhere

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if self.training:
            self.somewhere.at("forward", self.somewhere.step)
        return super().forward(x, labels)


def run_of(folder: Path, somewhere: Somewhere, **options: Any) -> Any:
    """A trainer of three batches in a step, whose collator draws random numbers, that logs, evaluates and saves."""
    model = Calling()
    model.somewhere = somewhere

    def collate(features: list[Any]) -> Any:
        somewhere.at("collator", somewhere.step + 1)
        batch = default_data_collator(features)
        batch["x"] = batch["x"] + torch.rand(())
        return batch

    every = {"eval_strategy": "steps", "eval_steps": 5, "logging_steps": 5, "save_steps": 5}
    args = {"max_steps": STEPS, "gradient_accumulation_steps": 3, "per_device_eval_batch_size": 2, **every, **options}
    built = net_trainer(
        folder, somewhere, model=model, train_dataset=net_samples(22), eval_dataset=net_samples(8, seed=1), **args
    )
    built.data_collator = collate
    return built


def send(name: str) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), getattr(signal, name))


def numbers(run: Any) -> list[dict[str, Any]]:
    timing = ("_runtime", "_per_second")
    entries = [entry for entry in run.state.log_history if "train_runtime" not in entry]
    return [{name: value for name, value in entry.items() if not name.endswith(timing)} for entry in entries]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = run_of(tmp_path_factory.mktemp("unbroken"), Somewhere())
    run.train()
    return run


PLACES = [
    *(("step begin", 1), ("forward", 1), ("forward", 2), ("forward", 3), ("backward", 1), ("backward", 3)),
    *(("between the batches", 1), ("between the batches", 2), ("gradients", 1), ("update", 1)),
    *(("collator", 1), ("collator", 3), ("log", 1), ("evaluation", 1), ("evaluation", 4), ("save", 1)),
    ("after others heard of the step", 1),
]


AFTER = [("evaluation", 4), ("save", 1)]
"""Those that come when their step is over, its last batch of evaluation included."""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize(("place", "nth"), PLACES, ids=lambda value: str(value))
def test_a_run_stopped_at_any_step_resumes_in_every_bit(
    place: str, nth: int, name: str, code: int, tmp_path: Path, unbroken: Any
):
    somewhere = Somewhere(place, send(name), nth)
    run = run_of(tmp_path, somewhere)
    with pytest.raises(SystemExit) as ended:
        run.train()
    assert ended.value.code == code
    assert somewhere.calls >= nth, "the signal was never sent"
    # The step under way is the last one; what comes when that is over, and its last evaluation too, makes one more.
    last = run.state.global_step
    assert last == (6 if (place, nth) in AFTER else 5)
    assert not list(tmp_path.glob(".tmp-*"))
    again = run_of(tmp_path, Somewhere())
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{last}"))
    assert same_weights(weights(again.model), weights(unbroken.model))
    assert numbers(again) == numbers(unbroken)
