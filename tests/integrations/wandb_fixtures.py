"""What the tests of wandb share: a clean environment, a quiet client, and a small tracked training."""

from __future__ import annotations

import os

import pytest
import torch
import wandb
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Evaluate, Log, Trainer, TrainingArguments, Wandb, every

QUIET = {"silent": True, "console": "off", "x_disable_stats": True, "x_save_requirements": False, "disable_git": True}


@pytest.fixture(scope="module", autouse=True)
def service():
    """What wandb leaves in a process ends with these tests: a service, threads, and a variable for its children.

    wandb also keeps the settings of its first use in the process. So what earlier tests of the process left ends too:
    they may have used wandb with `WANDB_MODE=offline`.
    """
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_") and name != "WANDB_SERVICE"]:
        monkeypatch.delenv(name)


def rows_of(size=32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 4, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def offline(folder, **options):
    given = {"dir": str(folder), "settings": QUIET, **options.pop("options", {})}
    return Wandb(project="demo", mode="offline", options=given, **options)


def build(folder, *callbacks, steps=8, **options):
    torch.manual_seed(0)
    given = {"max_steps": steps, "save_steps": 4, "run_name": "tried", "use_cpu": True, "disable_tqdm": True}
    listed = [*callbacks]
    if not any(isinstance(callback, Log) for callback in listed):
        listed.append(Log(every(2)))
    return Trainer(
        nn.Linear(4, 2),
        TrainingArguments(str(folder / "out"), **{**given, **options}),
        train_dataset=rows_of(),
        eval_dataset=rows_of(),
        criterion=nn.CrossEntropyLoss(),
        callbacks=[*listed, Evaluate(every(4))],
    )
