"""What a case of the parity suite is: one training, said once, that both trainers run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BASE = {
    **{"num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4},
    **{"learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no"},
}
"""The arguments of every case, unless it says otherwise: every step is logged."""

TRAIN_ROWS, EVAL_ROWS = 22, 13
"""So many that the last batch is not full: an epoch has 6 steps."""

RESUMED_AT = 5
"""Inside an epoch: the step of the checkpoint that resumed cases go on from."""


@dataclass(frozen=True)
class Case:
    """A training that both trainers are to do alike, and what it shows."""

    args: dict[str, Any]
    """Keywords of `TrainingArguments`, beside those of `BASE`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keywords of `Trainer`; `model` makes the model, and a `Fresh` value is made for each trainer anew."""
    about: str = ""
    """What equality shows here, in one sentence."""
    train: Callable[[Any], Any] = lambda trainer: trainer.train()
    """What is done with each trainer first; evaluating and predicting follow."""
    test: Any = None
    """What is predicted for; by default what is evaluated on."""
    differs: str = ""
    """The name of the one deliberate difference that this case meets."""
