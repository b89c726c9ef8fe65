"""Data and functions for the cases of the parity suite. What transformers makes is imported when it is made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from engine_toys import bert, sentences
from torch import nn
from torch.utils.data import Dataset, IterableDataset

LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Data.


def texts(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of different lengths, of the long ones the first labels being ignored."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(rows):
        length = int(torch.randint(3, 12, (1,), generator=generator))
        ids = torch.randint(1, 40, (length,), generator=generator).tolist()
        made.append({"input_ids": ids, "labels": [-100] * (length // 4) + ids[length // 4 :]})
    return made


def classified(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows as a tokenizer leaves them: of different lengths, with a mask, and with one label each."""
    return [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids[0] % 2}
        for ids in (row["input_ids"] for row in texts(rows, seed))
    ]


def answered(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose answer is a part of the text, given by its first and last word."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(1, 40, (10,), generator=generator).tolist(),
            "start_positions": int(torch.randint(0, 5, (1,), generator=generator)),
            "end_positions": int(torch.randint(5, 10, (1,), generator=generator)),
        }
        for _ in range(rows)
    ]


def half_labelled(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of texts, every other one without a label that counts."""
    return [
        {**row, "labels": [-100] * len(row["labels"])} if at % 2 else row for at, row in enumerate(texts(rows, seed))
    ]


def pictured(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of three floats, for `Anything`."""
    pixels = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return [{"pixels": row, "labels": at % 2} for at, row in enumerate(pixels)]


def measured(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose label is a number."""
    return [{"input_ids": row["input_ids"], "labels": row["start_positions"] / 3} for row in answered(rows, seed)]


def marked(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with three labels each, of which any number is right."""
    return [
        {"input_ids": row["input_ids"], "labels": [float(word % 2) for word in row["input_ids"][:3]]}
        for row in answered(rows, seed)
    ]


def twice_labelled(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows for `TwoHeaded`."""
    return [
        {"input_ids": row["input_ids"], "topic_labels": row["start_positions"] % 2, "tone_labels": at % 3}
        for at, row in enumerate(answered(rows, seed))
    ]


def without(column: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without one of their columns."""
    return [{name: value for name, value in row.items() if name != column} for row in rows]


def poisoned(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows for `Poisoned`, two of which have that word."""
    return [
        {**row, "input_ids": [49 if at in (3, 9) else word % 49 for word in row["input_ids"]]}
        for at, row in enumerate(sentences(rows, seed))
    ]


def renamed(label: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with another name for their labels."""
    return without("labels", [{**row, label: row["labels"]} for row in rows])


def table(rows: list[dict[str, Any]]) -> Any:
    """The rows as a dataset of the `datasets` library, with a column that no model knows."""
    from datasets import Dataset

    return Dataset.from_list([{**row, "comment": "unused"} for row in rows])


def measured_table(rows: list[dict[str, Any]]) -> Any:
    """The rows as a dataset of the `datasets` library, with a column that says how long each is."""
    from datasets import Dataset

    return Dataset.from_list([{**row, "words": len(row["input_ids"])} for row in rows])


class Rotating(Dataset):
    """Rows that begin elsewhere in each epoch, once they are told of it."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[(index + 5 * self.epoch) % len(self.rows)]


class Stream(IterableDataset):
    """Rows that can only be read from the first to the last, and whose number nobody knows; workers take turns."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        return iter(self.rows if worker is None else self.rows[worker.id :: worker.num_workers])


class Thinned(Stream):
    """One that leaves rows out as it draws, of NumPy and of Python."""

    def __iter__(self) -> Iterator[Any]:
        return (row for row in super().__iter__() if np.random.rand() < 0.8 and random.random() < 0.9)


# Collators.


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate rows of different lengths, padding the labels with -100."""
    width = max(len(row["input_ids"]) for row in rows)

    def fill(values: list[int], by: int) -> list[int]:
        return values + [by] * (width - len(values))

    return {
        "input_ids": torch.tensor([fill(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([fill([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([fill(row["labels"], -100) for row in rows]),
    }


def masked(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate, and hide a fifth of the words, others each time."""
    batch = {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}
    return {**batch, "input_ids": batch["input_ids"] * (torch.rand(batch["input_ids"].shape) > 0.2)}


def tokenizer() -> Any:
    """A tokenizer that knows single letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", "cls_token": "[CLS]"}
    words = {word: at for at, word in enumerate([*special.values(), *LETTERS])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def collator_of_transformers(name: str, **options: Any) -> Any:
    """One of transformers' collators, for the tokenizer above."""
    import transformers

    return getattr(transformers, name)(tokenizer(), **options)


# Metrics and losses.


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


def distance(prediction: Any) -> dict[str, float]:
    """A metric that is better when it is smaller, and whose name does not say so."""
    return {"distance": float(abs(prediction.predictions.argmax(-1) - prediction.label_ids).mean())}


def everything(prediction: Any) -> dict[str, float]:
    """A number for each thing that a metric may be given; it depends on the order of the rows, and on padding."""
    parts = {name: _weighted(getattr(prediction, name)) for name in ("predictions", "label_ids", "inputs", "losses")}
    return {name: value for name, value in parts.items() if value is not None}


def _weighted(values: Any) -> float | None:
    if values is None:
        return None
    if isinstance(values, (list, tuple)):
        return float(sum((at + 1) * (_weighted(value) or 0.0) for at, value in enumerate(values)))
    return float(sum((at + 1) * float(row.sum()) for at, row in enumerate(values)))


def of_every_type(prediction: Any) -> dict[str, Any]:
    """Metrics as people return them: of NumPy, of torch, named in full, nested."""
    return {
        **{"float32": np.float32(0.1), "float64": np.float64(0.1), "integer": np.int64(3), "whole": 3},
        **{"tensor": torch.tensor(0.1), "text": "fine", "eval_named": 0.5},
        **{"list": [np.float32(0.1), torch.tensor(2)], "nested": {"inner": np.float32(0.2)}},
    }


class BatchwiseAccuracy:
    """A metric that is given one batch at a time, and counts until the last."""

    def __init__(self) -> None:
        self.right = self.rows = 0

    def __call__(self, prediction: Any, compute_result: bool = False) -> dict[str, float]:
        self.right += int((prediction.predictions.argmax(-1) == prediction.label_ids).sum())
        self.rows += len(prediction.label_ids)
        if not compute_result:
            return {}
        result = {"accuracy": self.right / self.rows, "counted": self.rows}
        self.right = self.rows = 0
        return result


def best_guess(logits: Any, labels: Any) -> Any:
    """What is kept of the logits."""
    return logits.argmax(-1)


def summed_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss of one's own, averaged over the rows of a whole step."""
    loss = nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
    return loss / (num_items_in_batch if num_items_in_batch is not None else len(labels))


# Optimizers of one's own.


class Given:
    """A model, and the optimizer of that very model: both trainers get a pair of their own."""

    def __init__(self, schedule: bool) -> None:
        self.schedule = schedule
        self.made: list[nn.Module] = []

    def model(self) -> nn.Module:
        return self.made[-1]

    def optimizers(self) -> Any:
        self.made.append(bert())
        optimizer = torch.optim.SGD(self.made[-1].parameters(), lr=0.05, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5) if self.schedule else None


def all_in_order(trainer: Any) -> Any:
    """Evaluate, train and train again; what the last training returns."""
    trainer.evaluate()
    trainer.train()
    return trainer.train()


def nothing(trainer: Any) -> Any:
    """Do not train at all: what remains is to evaluate and to predict."""
    return SimpleNamespace(training_loss=None, metrics={})
