"""Samples of different lengths, and a collator that pads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

GROUPED = {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 4}


def sizes(rows: int, seed: int = 0) -> list[int]:
    """Lengths, many of them equal."""
    return np.random.default_rng(seed).integers(1, 13, rows).tolist()


def texts(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows for `bert` of different lengths."""
    random = np.random.default_rng(seed)
    return [
        {"input_ids": random.integers(1, 50, size).tolist(), "labels": int(random.integers(0, 2))}
        for size in sizes(rows, seed)
    ]


class Tokenizer:
    """Pads, as far as a collator needs it."""

    model_input_names = ("input_ids", "attention_mask")

    def pad(self, rows: list[Any], **options: Any) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        ids = [[*row["input_ids"]] + [0] * (width - len(row["input_ids"])) for row in rows]
        mask = [[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in rows]
        labels = {"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {}
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), **labels}


def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
    return Tokenizer().pad(rows)
