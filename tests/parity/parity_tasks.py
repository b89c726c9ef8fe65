"""Kinds of models with their data, for the grammar of random programs."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from support.data import SizedStream, Stream
from support.parity_data import classified, measured, padded, table, texts
from support.parity_models import gpt2, llama, of_bert, t5


class Network(nn.Module):
    """A perceptron for classes or numbers, with dropout."""

    main_input_name = "x"

    def __init__(self, classes: int, dropout: float, returns: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.returns = returns
        self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(self.body(x))
        if logits.shape[1] == 1:
            logits = logits[:, 0]
        named = {"logits": logits}
        if labels is not None:
            compute = nn.functional.mse_loss if logits.dim() == 1 else nn.functional.cross_entropy
            named = {"loss": compute(logits, labels), **named}
        return named if self.returns == "dict" else tuple(named.values())


class Recurrent(nn.Module):
    """An LSTM that classifies texts."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(40, 6)
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: Any, labels: Any = None) -> dict[str, torch.Tensor]:
        hidden, _ = self.lstm(self.words(input_ids))
        logits = self.head(self.dropout(hidden[:, -1]))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def numbers(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples for a `Network` of numbers."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": row, "labels": float(row.sum())} for row in x]


def classes(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples for a `Network` of three classes."""
    return [
        {"x": row["x"].tolist(), "labels": int(row["labels"] > 0) + (at % 2)}
        for at, row in enumerate(numbers(rows, seed))
    ]


def one_label(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate texts of different lengths that have one label each."""
    labels = [row["labels"] for row in rows]
    batch = padded([{**row, "labels": row["input_ids"]} for row in rows])
    return {**batch, "labels": torch.tensor(labels)}


class Task(NamedTuple):
    """A kind of model with its data."""

    model: Callable[[random.Random], Callable[[], nn.Module]]
    rows: Callable[[int, int], list[dict[str, Any]]]
    collator: Callable[[list[Any]], Any] | None
    tags: frozenset[str]
    """`smooth` if transformers can smooth the labels, `words` if there are texts, `hf` for transformers' models,
    `plain` if the default collator reads rows of every kind."""


def _task(model: Any, rows: Any, collator: Any, *tags: str) -> Task:
    return Task(model, rows, collator, frozenset(tags))


def _dropout(draw: random.Random) -> float:
    return draw.choice((0.0, 0.1, 0.4))


def _bert(task: str, **config: Any) -> Callable[[random.Random], Callable[[], nn.Module]]:
    def chosen(draw: random.Random) -> Callable[[], nn.Module]:
        dropout = _dropout(draw)
        return of_bert(task, **config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)

    return chosen


def _network(classes: int) -> Callable[[random.Random], Callable[[], nn.Module]]:
    def chosen(draw: random.Random) -> Callable[[], nn.Module]:
        dropout, returns = _dropout(draw), draw.choice(("dict", "dict", "tuple"))
        return lambda: Network(classes, dropout, returns)

    return chosen


def _recurrent(draw: random.Random) -> Callable[[], nn.Module]:
    dropout = _dropout(draw)
    return lambda: Recurrent(dropout)


TASKS = {
    "classes": _task(_network(4), classes, None, "plain"),
    "numbers": _task(_network(1), numbers, None, "plain"),
    "lstm": _task(_recurrent, classified, one_label, "words"),
    "bert": _task(_bert("SequenceClassification"), classified, one_label, "smooth", "words", "hf"),
    "bert of numbers": _task(_bert("SequenceClassification", num_labels=1), measured, None, "words", "hf", "plain"),
    "bert of tokens": _task(_bert("TokenClassification", num_labels=40), texts, padded, "classes", "words", "hf"),
    "gpt2": _task(lambda draw: gpt2, texts, padded, "smooth", "words", "hf"),
    "llama": _task(lambda draw: llama, texts, padded, "smooth", "words", "hf"),
    "t5": _task(lambda draw: t5, texts, padded, "words", "hf"),
}
"""Name -> task."""

FORMS = {
    "list": list,
    "dataset": lambda rows: _Rows(rows),
    "table": table,
    "objects": lambda rows: [SimpleNamespace(**row) for row in rows],
    "stream": Stream,
    "sized stream": SizedStream,
}
"""Name of the form of a dataset -> a function that brings rows into it."""


class _Rows(torch.utils.data.Dataset):
    """A dataset in the style of a map."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]
