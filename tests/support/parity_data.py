"""Data and functions for the cases of the parity suite. Classes of transformers are imported when they are used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from support.data import Stream, sentences
from support.models import bert

LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Data.


def texts(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples of different lengths. The first labels of long samples are ignored."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(rows):
        length = int(torch.randint(3, 12, (1,), generator=generator))
        ids = torch.randint(1, 40, (length,), generator=generator).tolist()
        made.append({"input_ids": ids, "labels": [-100] * (length // 4) + ids[length // 4 :]})
    return made


def classified(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples of different lengths with an attention mask and one label, as a tokenizer makes them."""
    return [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids[0] % 2}
        for ids in (row["input_ids"] for row in texts(rows, seed))
    ]


def answered(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples for question answering, with the positions of the first and last token of the answer."""
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
    """Return texts. Every other one has only ignored labels."""
    return [
        {**row, "labels": [-100] * len(row["labels"])} if at % 2 else row for at, row in enumerate(texts(rows, seed))
    ]


def pictured(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples of three floats, for `Anything`."""
    pixels = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return [{"pixels": row, "labels": at % 2} for at, row in enumerate(pixels)]


def paired(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples with two inputs and no labels."""
    return [{"left": row["pixels"], "right": row["pixels"] + 0.1} for row in pictured(rows, seed)]


def measured(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples with a float label."""
    return [{"input_ids": row["input_ids"], "labels": row["start_positions"] / 3} for row in answered(rows, seed)]


def marked(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples with three binary labels each."""
    return [
        {"input_ids": row["input_ids"], "labels": [float(word % 2) for word in row["input_ids"][:3]]}
        for row in answered(rows, seed)
    ]


def twice_labelled(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples for `TwoHeaded`."""
    return [
        {"input_ids": row["input_ids"], "topic_labels": row["start_positions"] % 2, "tone_labels": at % 3}
        for at, row in enumerate(answered(rows, seed))
    ]


def without(column: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples without one column."""
    return [{name: value for name, value in row.items() if name != column} for row in rows]


def poisoned(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples for `Poisoned`. Two of them have the token that makes the loss NaN."""
    return [
        {**row, "input_ids": [49 if at in (3, 9) else word % 49 for word in row["input_ids"]]}
        for at, row in enumerate(sentences(rows, seed))
    ]


def renamed(label: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples with another name for their labels."""
    return without("labels", [{**row, label: row["labels"]} for row in rows])


def table(rows: list[dict[str, Any]]) -> Any:
    """Return the samples as a `datasets.Dataset` with a column that the model does not use."""
    from datasets import Dataset

    return Dataset.from_list([{**row, "comment": "unused"} for row in rows])


def measured_table(rows: list[dict[str, Any]]) -> Any:
    """Return the samples as a `datasets.Dataset` with a column of their lengths."""
    from datasets import Dataset

    return Dataset.from_list([{**row, "words": len(row["input_ids"])} for row in rows])


class Rotating(Dataset):
    """A dataset whose first sample depends on the epoch that `set_epoch` sets."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[(index + 5 * self.epoch) % len(self.rows)]


class Thinned(Stream):
    """A stream that skips samples at random, with the generators of NumPy and Python."""

    def __iter__(self) -> Iterator[Any]:
        return (row for row in super().__iter__() if np.random.rand() < 0.8 and random.random() < 0.9)


# Collators.


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate samples of different lengths. Labels are padded with -100."""
    width = max(len(row["input_ids"]) for row in rows)

    def fill(values: list[int], by: int) -> list[int]:
        return values + [by] * (width - len(values))

    return {
        "input_ids": torch.tensor([fill(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([fill([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([fill(row["labels"], -100) for row in rows]),
    }


def masked(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate samples and mask a random fifth of the tokens."""
    batch = {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}
    return {**batch, "input_ids": batch["input_ids"] * (torch.rand(batch["input_ids"].shape) > 0.2)}


def tokenizer() -> Any:
    """Return a tokenizer of single letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", "cls_token": "[CLS]"}
    words = {word: at for at, word in enumerate([*special.values(), *LETTERS])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def collator_of_transformers(name: str, **options: Any) -> Any:
    """Return a collator of transformers for `tokenizer()`."""
    import transformers

    return getattr(transformers, name)(tokenizer(), **options)


# Metrics and losses.


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


def distance(prediction: Any) -> dict[str, float]:
    """Return a metric that is better when smaller. Its name does not show the direction."""
    return {"distance": float(abs(prediction.predictions.argmax(-1) - prediction.label_ids).mean())}


def everything(prediction: Any) -> dict[str, float]:
    """Return one number per input of a metric function. It depends on the order of the samples and the padding."""
    parts = {name: _weighted(getattr(prediction, name)) for name in ("predictions", "label_ids", "inputs", "losses")}
    return {name: value for name, value in parts.items() if value is not None}


def _weighted(values: Any) -> float | None:
    if values is None:
        return None
    if isinstance(values, (list, tuple)):
        return float(sum((at + 1) * (_weighted(value) or 0.0) for at, value in enumerate(values)))
    return float(sum((at + 1) * float(row.sum()) for at, row in enumerate(values)))


def of_every_type(prediction: Any) -> dict[str, Any]:
    """Return metrics of many types: of NumPy and torch, with the prefix, and nested."""
    return {
        **{"float32": np.float32(0.1), "float64": np.float64(0.1), "integer": np.int64(3), "whole": 3},
        **{"tensor": torch.tensor(0.1), "text": "fine", "eval_named": 0.5},
        **{"list": [np.float32(0.1), torch.tensor(2)], "nested": {"inner": np.float32(0.2)}},
    }


class BatchwiseAccuracy:
    """A metric that gets one batch at a time and returns its result with the last."""

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
    """Return the predicted class."""
    return logits.argmax(-1)


def summed_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return a custom loss, averaged over the samples of a whole step."""
    loss = nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
    return loss / (num_items_in_batch if num_items_in_batch is not None else len(labels))


# Optimizers that are passed to the trainer.


class Given:
    """A factory of a model and its optimizer. Each trainer gets its own pair."""

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
    """Evaluate and train twice. Return the result of the last training."""
    trainer.evaluate()
    trainer.train()
    return trainer.train()


def nothing(trainer: Any) -> Any:
    """Skip training, so that the case only evaluates and predicts."""
    return SimpleNamespace(training_loss=None, metrics={})
