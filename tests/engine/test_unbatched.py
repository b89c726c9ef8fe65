"""A dataset that is batched already trains, evaluates and predicts like its samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from support.data import points
from support.outcomes import history, same_weights, weights
from support.trainers import regression_trainer
from trainbus import unbatched
from trainbus.events import DataError

ROWS = points(22)


def batches(size: int, rows: list[Any] = ROWS) -> list[Any]:
    parts = [rows[first : first + size] for first in range(0, len(rows), size)]
    return [{name: torch.stack([row[name] for row in part]) for name in part[0]} for part in parts]


class Batches(IterableDataset):
    def __init__(self, made: list[Any]) -> None:
        self.made = made

    def __iter__(self) -> Iterator[Any]:
        return iter(self.made)


def read(made: list[Any]) -> list[Any]:
    rows: Any = unbatched(made)
    return [rows[index] for index in range(len(rows))]


def library_batches(size: int) -> Any:
    datasets = pytest.importorskip("datasets")
    columns = {name: [row[name].tolist() for row in ROWS] for name in ROWS[0]}
    return datasets.Dataset.from_dict(columns).batch(size).with_format("torch")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [batches, library_batches], ids=["list", "datasets"])
def test_the_samples_of_batches_train_like_the_samples(make: Any, workers: int, tmp_path: Path) -> None:
    args = {"eval_strategy": "epoch", "logging_steps": 1, "dataloader_num_workers": workers}
    one = regression_trainer(tmp_path, train_dataset=ROWS, eval_dataset=ROWS, args=args)
    other = regression_trainer(tmp_path, train_dataset=unbatched(make(4)), eval_dataset=unbatched(make(5)), args=args)
    one.train()
    other.train()
    assert same_weights(weights(one.model), weights(other.model))
    assert history(one) == history(other)
    assert other.predict(unbatched(make(4))).predictions.shape == (22,)


def test_a_stream_of_batches_of_any_size_gives_their_samples() -> None:
    found = list(unbatched(Batches([*batches(3), *batches(7)])))
    assert [row["labels"] for row in found] == [row["labels"] for row in ROWS * 2]


def test_tuples_and_columns_of_text_keep_their_values() -> None:
    assert read([([1, 2], ["a", "b"]), ([3], ["c"])]) == [(1, "a"), (2, "b"), (3, "c")]
    assert read([]) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([5, 6], "Sample 0 of the dataset is not a batch, but of type int"),
        ([{"x": 1.0}], "Sample 0 of the dataset is not a batch"),
        ([{"x": [1, 2], "y": [1]}], r"batch 0 of the dataset have different numbers of rows: \[1, 2\]"),
        ([{"x": [1, 2]}, {"x": [3]}, {"x": [4, 5]}], "Batch 1 of the dataset has 1 rows, but the first has 2"),
        ([{"x": [1, 2]}, {"x": [3, 4, 5]}], "Batch 1 of the dataset has 3 rows, but the first has 2"),
        ([{"x": []}, {"x": [1, 2]}], "Batch 1 of the dataset has 2 rows, but the first has 0"),
        ([{"x": []}, {"x": [1]}, {"x": []}], "Batch 2 of the dataset has 0 rows, but the first has 0"),
        ([{"x": [1]}, {"x": [2], "y": [3, 4]}], r"batch 1 of the dataset have different numbers of rows: \[1, 2\]"),
    ],
)
def test_samples_that_are_not_batches_are_named(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(data)
