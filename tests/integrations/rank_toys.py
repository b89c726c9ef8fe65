"""A small training of several processes, and ways to start and to disturb it, that the tests of ranks share."""

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

from trainbus import Callback, Trainer, TrainingArguments

torch.set_num_threads(1)

STEPS = 8


class Net(nn.Module):
    """Classifies, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


NOTHING = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no"}
EVERY = {"eval_strategy": "steps", "eval_steps": 4, "logging_steps": 2, "save_steps": 4}


def trainer_of(folder: Path | str, *callbacks: Any, often: dict[str, Any] = EVERY, **options: Any) -> Trainer:
    """A trainer of 8 steps that evaluates and saves at every fourth, or as `often` says."""
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
        Net(), args, train_dataset=rows, eval_dataset=few, criterion=nn.CrossEntropyLoss(), callbacks=list(callbacks)
    )


class Somewhere(Callback):
    """Calls something in one place of one step of one process."""

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
    """Return what sends this process a signal."""
    return lambda: os.kill(os.getpid(), getattr(signal, name))


def hang() -> None:
    """Do nothing for longer than any test lasts, whatever signals come."""
    while True:
        time.sleep(1.0)


def boom() -> None:
    """Fail."""
    raise ValueError("boom")


def weights(model: nn.Module) -> list[float]:
    """All weights of a model, exactly."""
    return [value for tensor in model.state_dict().values() for value in tensor.double().flatten().tolist()]


def numbers(trainer: Trainer) -> list[dict[str, Any]]:
    """What was logged, but for how fast it was."""
    timing = ("_runtime", "_per_second")
    entries = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    return [{name: value for name, value in entry.items() if not name.endswith(timing)} for entry in entries]


def steps_in(folder: Path | str) -> list[int]:
    """The steps of the checkpoints in a folder."""
    return sorted(int(path.name.partition("-")[2]) for path in Path(folder).glob("checkpoint-*"))


def write_json(path: Path | str, values: Any) -> None:
    """Write values into a file."""
    Path(path).write_text(json.dumps(values), encoding="utf-8")
