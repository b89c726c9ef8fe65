"""Data that end early are an error, or a stop with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resume_points import Stream

from support.data import points
from support.trainers import regression_trainer
from trainbus import default_data_collator
from trainbus.events import DataError


class Ending(torch.utils.data.Dataset):
    """Raises StopIteration for one of its rows."""

    def __init__(self, row: int) -> None:
        self.rows, self.row = points(20), row

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return next(iter(())) if index == self.row else self.rows[index]


class WronglySized(Stream):
    """Says that it has twice its rows."""

    def __len__(self) -> int:
        return 2 * len(self.rows)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("row", [0, 7, 19])
def test_stop_iteration_of_a_dataset_is_an_error(row: int, workers: int, tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, train_dataset=Ending(row), args={"dataloader_num_workers": workers})
    with pytest.raises(DataError, match=r"raised StopIteration at batch [1-5] of 5"):
        run.train()


def test_stop_iteration_of_a_collator_is_an_error(tmp_path: Path) -> None:
    calls: list[int] = []

    def collate(features: list[Any]) -> Any:
        calls.append(1)
        return next(iter(())) if len(calls) == 3 else default_data_collator(features)

    with pytest.raises(DataError, match="StopIteration at batch 3 of 5"):
        regression_trainer(tmp_path, data_collator=collate).train()


def test_stop_iteration_in_an_evaluation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="StopIteration"):
        regression_trainer(tmp_path, eval_dataset=Ending(3)).evaluate()


def test_data_of_the_announced_length_trains_to_the_end(tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, train_dataset=Ending(-1), args={"dataloader_num_workers": 2})
    run.train()
    assert run.state.global_step == 10


def test_a_length_that_is_too_large_is_named_in_the_ledger(tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, train_dataset=WronglySized(points(20)))
    run.train()
    assert (run.state.global_step, run.state.max_steps) == (10, 20)
    why = run.control.why("training_stop")
    assert "the data ends before step 20: the last epoch has 5 of 10 expected batches" in why
    assert why.startswith("stopped at step 10 by run: ")


class Longer(WronglySized):
    """A stream whose length is half of what it yields."""

    def __len__(self) -> int:
        return len(self.rows) // 2


def test_a_length_that_is_too_small_warns_once(tmp_path: Path, caplog: Any) -> None:
    run = regression_trainer(tmp_path, train_dataset=Longer(points(20)), args={"num_train_epochs": 2})
    run.train()
    told = [record.getMessage() for record in caplog.records if "yields more than" in record.getMessage()]
    assert told == [
        "Longer yields more than the 10 samples of its `__len__`. Epochs are planned with that length: return the "
        "number of samples from `__len__`, or remove it and set `max_steps`."
    ]


class Shared(Longer):
    """Each worker reads a part of the rows."""

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        return iter(self.rows[worker.id :: worker.num_workers])


class Exact(Shared):
    """A stream whose length is right. Its workers end with batches that are not full."""

    def __len__(self) -> int:
        return len(self.rows)


@pytest.mark.parametrize(("stream", "told"), [(Shared, 1), (Exact, 0)])
def test_workers_that_make_more_than_the_length_warn_once(stream: Any, told: int, tmp_path: Path, caplog: Any) -> None:
    args = {"num_train_epochs": 2, "dataloader_num_workers": 2}
    run = regression_trainer(tmp_path, train_dataset=stream(points(32)), eval_dataset=points(4), args=args)
    run.train()
    run.evaluate(stream(points(32)))
    told_by_evaluation = told
    assert caplog.text.count("yields more than") == told + told_by_evaluation
