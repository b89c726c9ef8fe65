"""Small models, data and runs that the engine's tests share."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from torch import nn
from torch.utils.data import Dataset

import trainbus

torch.set_num_threads(1)  # these models are too small to share, and the machine may be busy

SPEED = ("_runtime", "_per_second", "_preparation_time")
"""How the names of values end that differ from one run to the next, in any library."""


class Regression(nn.Module):
    """A line with an optional dropout before it; returns its loss and its predictions as a dict."""

    def __init__(self, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        predicted = self.linear(self.dropout(x)).squeeze(-1)
        if labels is None:
            return {"logits": predicted}
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


def points(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows for `Regression`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(rows, generator=generator)
    return [{"x": x[row], "labels": y[row]} for row in range(rows)]


class CountedRows(Dataset):
    """A dataset that notes which rows were read."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.rows[index]


def trainer(folder: Path | str, model: nn.Module | None = None, **options: Any) -> Any:
    """Build a trainer of ours that is quick and quiet; `args=` are keywords of its TrainingArguments."""
    args = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.05,
        "save_strategy": "no",
        "logging_strategy": "no",
        **options.pop("args", {}),
    }
    options.setdefault("train_dataset", points(20))
    model = model if model is not None or "model_init" in options else Regression()
    return trainbus.Trainer(model, trainbus.TrainingArguments(str(folder), **args), **options)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a model's weights."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of weights are equal in every bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """Logged values without those that say how fast the machine is."""
    return {name: value for name, value in values.items() if not name.endswith(SPEED)}


def history(run: Any) -> list[dict[str, Any]]:
    """A trainer's log history without what says how fast the machine is."""
    return [timeless(entry) for entry in run.state.log_history]


def last_window(run: Any) -> dict[str, Any] | None:
    """The entry with the training loss of the very last step, if the run made it a history of its own."""
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    return timeless(logged[-1]) if logged and logged[-1]["step"] == run.state.max_steps else None


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Keep another library from printing and warning."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# What both libraries train: the same models, data and arguments, said once.


def sentences(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows for `bert`, all of one length."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(0, 50, (12,), generator=generator).tolist(),
            "attention_mask": [1] * 12,
            "labels": int(torch.randint(0, 2, (1,), generator=generator)),
        }
        for _ in range(rows)
    ]


def bert(dropout: float = 0.1) -> nn.Module:
    """A BERT with two classes and 3,000 weights."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def both(
    folder: Path,
    args: dict[str, Any],
    do: Callable[[Any], Any] = lambda trainer: trainer.train(),
    model: Callable[[], Any] = bert,
    callbacks: Callable[[Any], list[Any]] = lambda library: [],
    **options: Any,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Do the same with transformers' Trainer and with ours; return (trainer, result) of each, theirs first.

    Args:
        folder: for the outputs.
        args: keywords of `TrainingArguments`, understood by both.
        do: what is done with each trainer.
        model: makes the model.
        callbacks: from a library, `transformers` or `trainbus`, to the list of callbacks.
        **options: further arguments of both trainers; those that are made by a function come from `made_by`.
    """
    import transformers

    done = []
    for library in (transformers, trainbus):
        with hushed():
            said = library.TrainingArguments(
                str(folder / library.__name__), use_cpu=True, disable_tqdm=True, report_to="none", **args
            )
            made = {name: value() if isinstance(value, Fresh) else value for name, value in options.items()}
            if "model_init" not in made:
                made["model"] = model()
            run = library.Trainer(args=said, callbacks=callbacks(library), **made)
            done.append((run, do(run)))
    return done[0], done[1]


class Fresh:
    """Wraps a function whose result both trainers get a copy of their own of."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self) -> Any:
        return self.make()
