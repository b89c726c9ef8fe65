"""Datasets that change with the epoch, in workers: a resumed run loads the same samples as the uninterrupted run."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.sharedctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_points import DATA, ROWS, mismatches, run_of
from torch.utils.data import Dataset

from support.data import Stream, points
from support.outcomes import history
from trainbus.engine.data.workers.shared_values import shares_values


class Plain:
    """An epoch that each process keeps for itself."""

    def __init__(self) -> None:
        self.value = 0


def in_tensor() -> Any:
    return torch.zeros((), dtype=torch.long).share_memory_()


def in_multiprocessing() -> Any:
    return multiprocessing.Value("i", 0)


EPOCHS: dict[str, Callable[[], Any]] = {"own": Plain, "tensor": in_tensor, "multiprocessing": in_multiprocessing}
VALUES: dict[str, tuple[Callable[[], Any], bool]] = {
    "value without a lock": (lambda: multiprocessing.Value("i", 0, lock=False), True),
    "raw value": (lambda: multiprocessing.sharedctypes.RawValue("i", 0), True),
    "array": (lambda: multiprocessing.Array("i", 1), True),
    "array without a lock": (lambda: multiprocessing.Array("i", 1, lock=False), True),
    "number of ctypes": (lambda: ctypes.c_int(0), False),
    "array of ctypes": (lambda: (ctypes.c_int * 2)(), False),
}


class ChangingRows(Dataset):
    """Rows that are shifted by the epoch."""

    def __init__(self, epoch: Any) -> None:
        self.rows, self.epoch = points(ROWS), epoch

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.epoch, torch.Tensor):
            self.epoch.fill_(epoch)
        else:
            self.epoch.value = epoch

    def _now(self) -> int:
        return int(self.epoch if isinstance(self.epoch, torch.Tensor) else self.epoch.value)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return {**row, "x": row["x"] + self._now()}


class ChangingStream(ChangingRows, Stream):
    """A stream of rows that are shifted by the epoch."""

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        for index in range(worker.id if worker else 0, ROWS, worker.num_workers if worker else 1):
            yield self[index]


def kinds() -> Iterator[Any]:
    for make in (ChangingRows, ChangingStream):
        for epoch in EPOCHS:
            yield pytest.param(lambda make=make, epoch=epoch: make(EPOCHS[epoch]()), id=f"{make.__name__} {epoch}")


@pytest.fixture(params=kinds())
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(DATA, "changing", request.param)
    return "changing"


@pytest.mark.parametrize("persistent", [False, True])
def test_a_resume_in_a_later_epoch_is_exact(kind: str, persistent: bool, tmp_path: Path) -> None:
    setting = {"data": kind, "collator": "torch", "workers": 2, "dataloader_persistent_workers": persistent}
    assert mismatches(tmp_path, [3, 6, 8], **setting) == []


def test_the_epoch_of_the_workers_survives_two_resumes(kind: str, tmp_path: Path) -> None:
    setting = {"data": kind, "collator": "torch", "workers": 2, "dataloader_persistent_workers": True, "max_steps": 18}
    whole = run_of(tmp_path / "whole", **setting)
    whole.train()
    for seed, stop in enumerate((8, 14)):
        again = run_of(tmp_path / "again", **setting, seed=seed, save_strategy="steps", save_steps=stop)
        again.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=stop)
        again.train(resume_from_checkpoint=seed > 0)
    last = run_of(tmp_path / "again", **setting, seed=9)
    last.train(resume_from_checkpoint=True)
    assert history(last) == history(whole)
    for mine, other in zip(last.model.parameters(), whole.model.parameters()):
        assert mine.equal(other)


def test_a_resume_with_another_batch_size_keeps_the_epoch_of_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATA, "changing", lambda: ChangingRows(Plain()))
    setting = {"data": "changing", "collator": "pure", "workers": 2, "dataloader_persistent_workers": True}
    run_of(tmp_path, **setting, save_strategy="steps", save_steps=8).train()
    seen: list[float] = []
    again = run_of(tmp_path, **setting, per_device_train_batch_size=2, max_steps=12)
    again.model.register_forward_pre_hook(
        lambda module, args, values: seen.extend(values["x"].flatten()), with_kwargs=True
    )
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    known = {float(value) for row in points(ROWS) for value in row["x"].flatten()}
    assert seen
    assert {float(value) for value in seen} <= known


@pytest.mark.parametrize("epoch", EPOCHS)
def test_an_epoch_in_shared_memory_is_found(epoch: str) -> None:
    dataset = ChangingRows(EPOCHS[epoch]())
    assert shares_values(dataset) == (epoch != "own")
    assert shares_values(torch.utils.data.Subset(dataset, [0])) == (epoch != "own")


@pytest.mark.parametrize(("make", "shared"), VALUES.values(), ids=VALUES)
def test_values_of_ctypes_are_shared_only_in_shared_memory(make: Callable[[], Any], shared: bool) -> None:
    assert shares_values(ChangingRows(make())) == shared


def test_a_large_tensor_in_shared_memory_is_no_epoch() -> None:
    dataset = ChangingRows(Plain())
    dataset.table = torch.zeros(100).share_memory_()  # type: ignore[attr-defined]
    assert not shares_values(dataset)


class Slotted:
    """A dataset without a `__dict__`."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: Any) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("epoch", EPOCHS)
def test_an_epoch_is_found_in_slots_and_in_the_closure_of_a_transform(epoch: str) -> None:
    value = EPOCHS[epoch]()

    def transform(row: Any) -> Any:
        return row, value

    dataset = ChangingRows(Plain())
    dataset.transform = transform  # type: ignore[attr-defined]
    assert shares_values(Slotted(value)) == (epoch != "own")
    assert shares_values(dataset) == (epoch != "own")
