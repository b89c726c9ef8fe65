"""The error of a full memory is not replaced by an error with another cause, such as damage to a checkpoint."""

from __future__ import annotations

import errno
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from support.data import points
from support.models import Regression
from trainbus import Callback, Trainer, TrainingArguments
from trainbus.engine.arguments.plugins import selection
from trainbus.engine.checkpoint import carried_states
from trainbus.engine.checkpoint.format import codec
from trainbus.engine.checkpoint.format.folder import CheckpointFolder
from trainbus.engine.checkpoint.migrated_states import migrated
from trainbus.engine.checkpoint.read import adapters, hf_checkpoint, verify, weights
from trainbus.engine.checkpoint.read.fitting import fitting
from trainbus.engine.checkpoint.read.pickled import load_plain
from trainbus.engine.checkpoint.write import export
from trainbus.engine.data.collators import default
from trainbus.engine.data.packing import layout
from trainbus.engine.distributed.memory_errors import is_out_of_memory, lacks_memory
from trainbus.engine.loss.loss_module import LossModule
from trainbus.events import CheckpointError

ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
]
OF_THE_SYSTEM = [OSError(errno.ENOMEM, "Cannot allocate memory"), OSError("Cannot allocate memory (os error 12)")]


def cpu_error() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    return caught.value


def test_errors_of_a_full_memory_are_known() -> None:
    assert all(map(lacks_memory, [*ERRORS, *OF_THE_SYSTEM, cpu_error()]))
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


def weight_file(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    save_file({"weight": torch.ones(2)}, folder / "model.safetensors")
    monkeypatch.setattr(weights, "safe_open", fail)
    weights.read_weights(CheckpointFolder(folder))


def weight_copy(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    model = nn.Linear(2, 1)
    save_file(model.state_dict(), folder / "model.safetensors")
    weights.load_weights(model, CheckpointFolder(folder), fail)


def adapter_file(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(adapters, "safe_open", fail)
    adapters._read(folder / "adapter_model.safetensors")


def generators(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(random.Random, "setstate", fail)
    hf_checkpoint._rng_states({"python": (), "numpy": (), "cpu": torch.ones(2)}, folder)


def loss_weights(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    module: Any = nn.Linear(2, 1)
    monkeypatch.setattr(module, "load_state_dict", fail)
    LossModule(module).load_state_dict({"weights": {}})


def state_of_earlier_version(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    class Versioned(Callback):
        migrate = staticmethod(fail)

    migrated(Versioned(), "Versioned", {}, 1)


def copied_state(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    class State:
        def __deepcopy__(self, memo: Any) -> Any:
            fail()

    carried_states._copied(State())


def probe_of_packing(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(layout, "_logits", fail)
    layout._difference(nn.Embedding(4, 4), SimpleNamespace(vocab_size=64), layout.Layout(0))


def default_stack(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(default, "default_collate", fail)
    default._collated("column 'x'", [1, 2])


def tensor_stack(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "stack", fail)
    default._stack("column 'x'", [torch.ones(1), torch.ones(1)])


def traced(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.export, "export", fail)
    export.export_model(nn.Linear(2, 1), {"input": torch.ones(1, 2)}, folder)


def configured_plugin(folder: Path, fail: Callable[..., Any], monkeypatch: Any) -> None:
    plugin: Any = SimpleNamespace(failure=ValueError)
    spec: Any = None
    monkeypatch.setattr(selection, "offered_by", lambda plugin: fail)
    monkeypatch.setattr(selection, "built_from", fail)
    selection._made(plugin, spec, None, auto=False)


PLACES = [misfit, pickled, values, archive, weight_file, weight_copy, adapter_file, generators, loss_weights]
PLACES += [state_of_earlier_version, copied_state, probe_of_packing, default_stack, tensor_stack, traced]
PLACES += [configured_plugin]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_full_memory_is_no_other_fault(place: Any, error: Exception, tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(type(error)) as caught:
        place(tmp_path, fails(error), monkeypatch)
    assert caught.value is error


@pytest.mark.parametrize("error", OF_THE_SYSTEM, ids=["number", "text"])
@pytest.mark.parametrize("place", [weight_file, adapter_file, archive])
def test_a_file_that_cannot_be_mapped_is_not_damaged(
    place: Any, error: Exception, tmp_path: Path, monkeypatch: Any
) -> None:
    with pytest.raises(OSError, match="Cannot allocate memory"):
        place(tmp_path, fails(error), monkeypatch)


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
