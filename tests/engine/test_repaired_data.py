"""A resumed run fetches its first batch again, so it sees a repaired dataset or collator. No batch is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from support.data import Stream
from support.trainers import regression_trainer
from trainbus import default_data_collator

WIDTH = 50_000
"""Values of a sample. A batch of 4 has 800 kB."""


class Rows(Dataset):
    """Samples that hold a value, which a repair changes."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((WIDTH,), self.value), "labels": torch.tensor(float(index))}


class Seen(nn.Module):
    """Notes the first value and the labels of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[float, list[float]]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append((x[0, 0].item(), labels.tolist()))
        return {"loss": ((self.weight + labels) ** 2).mean()}


def run_of(folder: Path, data: Any, factor: float = 1.0, **args: Any) -> Any:
    def collate(features: list[Any]) -> Any:
        batch = default_data_collator(features)
        batch["x"] = batch["x"] * factor
        return batch

    args = {"max_steps": 4, **args}
    return regression_trainer(folder, Seen(), args=args, train_dataset=data, data_collator=collate)


def stream(value: float) -> Stream:
    rows = Rows(value)
    return Stream([rows[index] for index in range(len(rows))])


@pytest.mark.parametrize("repaired", ["dataset", "collator"])
@pytest.mark.parametrize("kind", ["rows", "workers", "stream", "stream with workers", "accumulation"])
def test_the_first_batch_after_a_resume_comes_from_the_repaired_data(kind: str, repaired: str, tmp_path: Path) -> None:
    make = stream if "stream" in kind else Rows
    args: dict[str, Any] = {"dataloader_num_workers": 2 if "workers" in kind else 0}
    if kind == "accumulation":
        args["gradient_accumulation_steps"] = 2
    broken = run_of(tmp_path, make(1.0), save_strategy="steps", save_steps=2, **args)
    broken.train()
    data, factor = (make(5.0), 1.0) if repaired == "dataset" else (make(1.0), 5.0)
    again = run_of(tmp_path, data, factor, **args)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    done = 2 * args.get("gradient_accumulation_steps", 1)
    assert [value for value, _ in again.model.seen] == [5.0] * done
    assert [labels for _, labels in again.model.seen] == [labels for _, labels in broken.model.seen[done:]]


@pytest.mark.parametrize("kind", ["rows", "stream"])
def test_a_checkpoint_holds_no_batch(kind: str, tmp_path: Path) -> None:
    data = stream(1.0) if kind == "stream" else Rows(1.0)
    run_of(tmp_path, data, save_strategy="steps", save_steps=2).train()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "checkpoint-2").iterdir()}
    assert max(sizes.values()) < 60_000, sizes
