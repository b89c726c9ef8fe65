"""A small training on several ranks, and ways to disturb it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.models import Classifier
from trainbus import Callback, Trainer, TrainingArguments

STEPS = 8
NOTHING = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no"}
EVERY = {"eval_strategy": "steps", "eval_steps": 4, "logging_steps": 2, "save_steps": 4}


def trainer_of(folder: Path | str, *callbacks: Any, often: dict[str, Any] = EVERY, **options: Any) -> Trainer:
    """Build a trainer of 8 steps. It evaluates and saves every 4 steps, unless `often` says otherwise."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 4, generator=generator)
    rows, few = TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:24], (x[:24, 1] > 0).long())
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=0.05,
        **{"max_steps": STEPS, "ddp_timeout": 60, "use_cpu": True, "disable_tqdm": True, **often, **options},
    )
    return Trainer(
        Classifier(),
        args,
        train_dataset=rows,
        eval_dataset=few,
        criterion=nn.CrossEntropyLoss(),
        callbacks=list(callbacks),
    )


class Somewhere(Callback):
    """Calls a function once: at one place of one step on one rank."""

    def __init__(self, place: str, step: int, does: Callable[[], None], rank: int = 1) -> None:
        self.place, self.step, self.does, self.rank = place, step, does, rank
        self.now = 0

    def at(self, place: str, step: int) -> None:
        if (place, step, str(self.rank)) == (self.place, self.step, os.environ["RANK"]):
            self.place = ""
            self.does()

    def on_step_begin(self, state: Any) -> None:
        self.now = state.global_step + 1

    def on_loss(self, loss: Any) -> None:
        self.at("forward", self.now)
        loss.register_hook(lambda gradient: self.at("backward", self.now))

    def on_gradients(self) -> None:
        self.at("gradients", self.now)

    def on_step_end(self, state: Any) -> None:
        self.at("step end", state.global_step)

    def on_prediction_step(self, state: Any) -> None:
        self.at("evaluation", state.global_step)

    def on_save_begin(self, state: Any) -> None:
        self.at("save", state.global_step)


def send(name: str) -> Callable[[], None]:
    """Return a function that sends a signal to this process."""
    return lambda: os.kill(os.getpid(), getattr(signal, name))


def hang() -> None:
    """Sleep forever. Signals do not end it."""
    while True:
        time.sleep(1.0)


def boom() -> None:
    """Raise an error."""
    raise ValueError("boom")


def weight_values(model: nn.Module) -> list[float]:
    """Return all weights of a model as floats."""
    return [value for tensor in model.state_dict().values() for value in tensor.double().flatten().tolist()]


def write_json(path: Path | str, values: Any) -> None:
    """Write values to a file."""
    Path(path).write_text(json.dumps(values), encoding="utf-8")
