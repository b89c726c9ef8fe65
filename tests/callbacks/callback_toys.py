"""A small model, its rows, and trainers of both, for the tests of callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainbus import Callback, Checkpoint, Log, Progress, Trainer, TrainingArguments
from trainbus.events import record

torch.set_num_threads(1)  # these models are too small to share


class Block(nn.Module):
    """A layer with dropout, so that a run that loses its place in the random numbers is found out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.tanh(self.linear(x)))


class Net(nn.Module):
    """Two blocks and a head; returns loss and logits as a dict."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.blocks(x)).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Words(nn.Module):
    """An embedding, a block and a head, for rows of `sentences`."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(20, 6)
        self.block = Block()
        self.head = nn.Linear(6, 1)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.block(self.tokens(input_ids)).mean(1)).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Remembering(nn.Module):
    """Adds to each batch what it made of the batch before, which is the first output beside the loss."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.block = Block()
        self.head = nn.Linear(6, 1)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, mems: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        hidden = self.block(x if mems is None else x + mems.mean(0))
        logits = self.head(hidden).squeeze(-1)
        if labels is None:
            return {"mems": hidden, "logits": logits}
        return {"loss": nn.functional.mse_loss(logits, labels), "mems": hidden, "logits": logits}


def rows(count: int = 16, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Rows for `Net`; 16 of them are 4 batches, an epoch of 4 steps."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return [{"x": row, "labels": row.sum()} for row in x]


def sentences(count: int = 16, length: int = 5, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Rows for `Words`."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 20, (count, length), generator=generator)
    return [{"input_ids": row, "labels": row.float().mean() / 10} for row in tokens]


TRAINER = (
    *("model_init", "train_dataset", "eval_dataset", "compute_metrics", "criterion"),
    *("optimizers", "optimizer_cls_and_kwargs"),
)


def trainer(folder: Path | str, *callbacks: Any, model: nn.Module | None = None, **options: Any) -> Trainer:
    """Build a trainer of 6 steps with these callbacks.

    Options are those of `Trainer`, or `TrainingArguments`. Logging and saving are off unless a callback, or an
    argument, asks for them.
    """
    given = {name: options.pop(name) for name in TRAINER if name in options}
    given = {"train_dataset": rows(), "eval_dataset": rows(8, seed=1), **given}
    for kind, prefix in ((Log, "logging"), (Checkpoint, "save")):
        listed = any(isinstance(callback, kind) for callback in callbacks)
        if not listed and not any(name.startswith(f"{prefix}_") for name in options):
            options[f"{prefix}_strategy"] = "no"
    arguments: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": 6, "learning_rate": 0.05}
    if not any(isinstance(callback, Progress) for callback in callbacks):
        arguments["disable_tqdm"] = True
    args = TrainingArguments(str(folder), use_cpu=True, **{**arguments, **options})
    if model is None and "model_init" not in given:
        model = Net()
    return Trainer(model, args, callbacks=list(callbacks), **given)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of a model's weights."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Say whether weights are equal to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def steps_of(trained: Trainer, event: str) -> list[int]:
    """Train, and return the steps after which an event was announced."""
    with record(trained.bus) as trace:
        trained.train()
    return [step for step, announced in trace.entries if announced == event]


def logged(trained: Trainer, key: str) -> dict[int, Any]:
    """Return what was logged under a key, by step; refuse a key that was logged twice at one step."""
    entries = [entry for entry in trained.state.log_history if key in entry]
    values = {entry["step"]: entry[key] for entry in entries}
    assert len(values) == len(entries), f"{key} was logged twice at one step: {entries}"
    return values


def saved_steps(folder: Path | str) -> list[int]:
    """Return the steps of the checkpoints in a folder."""
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in Path(folder).glob("checkpoint-*"))


def scripted(values: Iterable[float], name: str = "score") -> Callable[[Any], dict[str, float]]:
    """Return a `compute_metrics` that measures these values, one after the other, and then the last again."""
    remaining = list(values)

    def measure(prediction: Any) -> dict[str, float]:
        return {name: remaining.pop(0) if len(remaining) > 1 else remaining[0]}

    return measure


def stop_at(step: int) -> Callable[..., None]:
    """Return a handler of `on_step_end` that stops a run."""

    def interrupt(state: Any, control: Any) -> None:
        if state.global_step == step:
            control.request("training_stop", "interrupted by the test")

    return interrupt


class Poison(Callback):
    """Makes the loss of some steps NaN, as a bad batch does."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_loss(self, run: Any, state: Any, loss: Any) -> None:
        if state.global_step + 1 in self.steps:
            run.loss = loss * math.nan


class Boom(Exception):
    """The failure that a test causes."""
