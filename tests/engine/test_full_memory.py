"""A full memory, while a checkpoint is read, is not reported as damage to the checkpoint."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.data import points
from support.models import Regression
from trainbus import Trainer, TrainingArguments
from trainbus.engine.checkpoint.format import codec
from trainbus.engine.checkpoint.format.folder import CheckpointFolder
from trainbus.engine.checkpoint.read import verify
from trainbus.engine.checkpoint.read.fitting import fitting
from trainbus.engine.checkpoint.read.pickled import load_plain
from trainbus.engine.distributed.memory_errors import is_out_of_memory, lacks_memory
from trainbus.events import CheckpointError

ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
]


def cpu_error() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    return caught.value


def test_errors_of_a_full_memory_are_known() -> None:
    assert all(map(lacks_memory, [*ERRORS, cpu_error()]))
    assert is_out_of_memory(cpu_error())
    assert not any(map(lacks_memory, [RuntimeError("size mismatch"), ValueError("out of memory"), OSError()]))


def fails(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **options: Any) -> Any:
        raise error

    return fail


def misfit(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    with fitting([], folder):
        fail()


def pickled(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "load", fail)
    load_plain(folder / "optimizer.pt")


def values(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(codec, "has_sharded_tensors", fail)
    codec.load_values(folder / "optimizer.safetensors")


def archive(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(zipfile.ZipFile, "testzip", fail)
    torch.save({"weight": torch.ones(2)}, folder / "optimizer.pt")
    (folder / "model.safetensors").write_bytes(b"")
    verify._unreadable(CheckpointFolder(folder))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("reads", [misfit, pickled, values, archive])
def test_a_full_memory_is_not_damage(reads: Any, error: Exception, tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(type(error)) as caught:
        reads(tmp_path, fails(error), monkeypatch)
    assert caught.value is error


def test_a_schedule_that_lacks_memory_is_no_misfit(tmp_path: Path) -> None:
    def trainer(schedule: type[Any]) -> Trainer:
        model = Regression()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        args = TrainingArguments(str(tmp_path), max_steps=4, save_steps=2, use_cpu=True, report_to="none")
        return Trainer(model, args, train_dataset=points(16), optimizers=(optimizer, schedule(optimizer, gamma=0.5)))

    class Full(torch.optim.lr_scheduler.ExponentialLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise MemoryError

    class Unfit(torch.optim.lr_scheduler.ExponentialLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise KeyError("gamma")

    trainer(torch.optim.lr_scheduler.ExponentialLR).train()
    with pytest.raises(MemoryError):
        trainer(Full).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    with pytest.raises(CheckpointError, match="does not fit the Unfit of this run"):
        trainer(Unfit).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
