"""A tiny problem to train on: a model of 91 weights with dropout, its samples, and a trainer of 6 steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import Checkpoint, Log, Progress, Trainer, TrainingArguments


class Block(nn.Module):
    """A layer with dropout. A resumed run that loses the RNG state gets other weights than the uninterrupted run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of `x`, (samples, 6)."""
        result: torch.Tensor = self.dropout(torch.tanh(self.linear(x)))
        return result


class Net(nn.Module):
    """Two blocks and a head. Returns a dict with the loss and the logits."""

    def __init__(self, seed: int = 0) -> None:
        """Initialize the weights from a seed. The constructor sets the global seed of torch."""
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return `logits` of shape (samples,), and `loss` if there are labels."""
        logits = self.head(self.blocks(x)).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def net_samples(count: int = 16, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Return samples for `Net`. The 16 samples of the default give an epoch of 4 steps, each with one batch."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return [{"x": row, "labels": row.sum()} for row in x]


TRAINER_OPTIONS = (
    *("model_init", "train_dataset", "eval_dataset", "compute_metrics", "criterion", "data_collator"),
    *("optimizers", "optimizer_cls_and_kwargs"),
)
"""Options of `tiny_trainer` that are arguments of `Trainer`."""


def tiny_trainer(folder: Path | str, *callbacks: Any, model: nn.Module | None = None, **options: Any) -> Trainer:
    """Build a trainer that trains 6 steps. The default model is a `Net`.

    The trainer logs and saves only if a callback or an argument such as `save_steps` requests it.

    Args:
        folder: the output folder.
        callbacks: the callbacks.
        model: the model. Default: a `Net` if there is no `model_init`.
        **options: arguments of `Trainer` and of `TrainingArguments`. `use_cpu` is True by default.
    """
    given = {name: options.pop(name) for name in TRAINER_OPTIONS if name in options}
    given = {"train_dataset": net_samples(), "eval_dataset": net_samples(8, seed=1), **given}
    for kind, prefix in ((Log, "logging"), (Checkpoint, "save")):
        listed = any(isinstance(callback, kind) for callback in callbacks)
        if not listed and not any(name.startswith(f"{prefix}_") for name in options):
            options[f"{prefix}_strategy"] = "no"
    arguments: dict[str, Any] = {"use_cpu": True, "per_device_train_batch_size": 4}
    arguments |= {"max_steps": 6, "learning_rate": 0.05}
    if not any(isinstance(callback, Progress) for callback in callbacks):
        arguments["disable_tqdm"] = True
    args = TrainingArguments(str(folder), **{**arguments, **options})
    if model is None and "model_init" not in given:
        model = Net()
    with nullcontext() if "plugins" in options else without_plugins():
        return Trainer(model, args, callbacks=list(callbacks), **given)


PLUGIN_SWITCHES = {"TRAINBUS_PLUGINS": "none", "TRAINBUS_DISABLE_PLUGINS": "all"}
"""Environment variables that keep installed plugins out of a trainer."""


@contextmanager
def without_plugins() -> Iterator[None]:
    """Disable installed plugins in a `with` block: trainers that are built in the block attach no plugin."""
    before = {name: os.environ.get(name) for name in PLUGIN_SWITCHES}
    os.environ.update(PLUGIN_SWITCHES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the parameters and buffers of a model, by name."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether two dicts have the same names, and weights of the same shapes and values."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def equal(left: Any, right: Any) -> bool:
    """Return whether nested values are equal. A list equals a tuple with the same items. NaN numbers are equal."""
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return isinstance(right, (list, tuple)) and len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    return bool(left == right) or (left != left and right != right)


SPEED = ("_runtime", "_per_second", "_preparation_time")
"""Suffixes of logged values that differ from one run to the next."""


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """Return logged values without speeds and durations."""
    return {name: value for name, value in values.items() if not name.endswith(SPEED)}


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch use one thread in a `with` block. On a busy machine, more threads slow a small model down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() == 1:  # a callback under test may have set another number, which a check reports
            torch.set_num_threads(before)
