"""Samples, datasets and streams that several tests read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from trainbus.testing.tiny import net_samples

__all__ = ["CountedRows", "SizedStream", "Stream", "net_samples", "points", "sentences", "token_samples"]


def points(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples for `Regression`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(rows, generator=generator)
    return [{"x": x[row], "labels": y[row]} for row in range(rows)]


def sentences(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples for `bert`, all of one length."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(0, 50, (12,), generator=generator).tolist(),
            "attention_mask": [1] * 12,
            "labels": int(torch.randint(0, 2, (1,), generator=generator)),
        }
        for _ in range(rows)
    ]


def token_samples(count: int = 16, length: int = 5, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Return samples for `Words`."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 20, (count, length), generator=generator)
    return [{"input_ids": row, "labels": row.float().mean() / 10} for row in tokens]


class CountedRows(Dataset):
    """A dataset that records the index of each sample that is read."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.rows[index]


class Stream(IterableDataset):
    """A stream of unknown length. Workers read alternating samples."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        return iter(self.rows if worker is None else self.rows[worker.id :: worker.num_workers])


class SizedStream(Stream):
    """A stream of known length."""

    def __len__(self) -> int:
        return len(self.rows)


def text_samples(count: int = 16, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Return samples for `llama`. The first tokens of every second sample have no label."""
    samples = []
    for row in range(count):
        tokens = torch.randint(300, (length,), generator=torch.Generator().manual_seed(row))
        labels = tokens.clone()
        labels[: 10 * (row % 2)] = -100
        samples.append({"input_ids": tokens, "labels": labels})
    return samples
