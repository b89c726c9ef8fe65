"""A case of the parity suite: one training that both trainers run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BASE = {
    **{"num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4},
    **{"learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no"},
}
"""The arguments of every case, unless the case overrides them. Every step is logged."""

TRAIN_ROWS, EVAL_ROWS = 22, 13
"""Sizes of the datasets. An epoch has 6 steps, and its last batch is not full."""

RESUMED_AT = 5
"""The step of the checkpoint that cases resume from. It is inside an epoch."""


@dataclass(frozen=True)
class Case:
    """A training with equal results in both trainers."""

    args: dict[str, Any]
    """Keyword arguments of `TrainingArguments`, in addition to `BASE`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `Trainer`. `model` builds the model. A `Fresh` value is built once per trainer."""
    about: str = ""
    """What the case shows, in a sentence."""
    train: Callable[[Any], Any] = lambda trainer: trainer.train()
    """The calls before evaluating and predicting."""
    test: Any = None
    """The dataset to predict. Default: the evaluation dataset."""
    differs: str = ""
    """The name of the deliberate difference that this case has; empty if none."""
