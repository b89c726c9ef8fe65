"""Batches that are pinned and moved to a GPU, and collectives of nccl, on the CPU."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data._utils.pin_memory import pin_memory
from transformers import BatchEncoding, BatchFeature

from trainbus.engine.data import batches
from trainbus.engine.data.batches import to_device
from trainbus.engine.data.streaming_shards import PaddedBatch
from trainbus.engine.data.workers.startup import WorkerBatch
from trainbus.engine.distributed.ranks import Ranks
from trainbus.testing import tiny_trainer

META = torch.device("meta")
"""Stands for a GPU."""


@dataclass
class Graph:
    """A batch of a class that moves and pins itself."""

    nodes: torch.Tensor
    pinned: bool = False

    def to(self, device: torch.device) -> Graph:
        return Graph(self.nodes.to(device))

    def pin_memory(self) -> Graph:
        return Graph(self.nodes, pinned=True)


class Encoding(UserDict[str, Any]):
    """A mapping with an attribute besides its items, as a `BatchEncoding` has."""

    encodings: str = ""

    def to(self, device: torch.device, non_blocking: bool = False) -> Encoding:
        self.data = {
            name: value.to(device, non_blocking=non_blocking) if isinstance(value, torch.Tensor) else value
            for name, value in self.data.items()
        }
        return self


def encoding() -> Encoding:
    made = Encoding({"x": torch.ones(2)})
    made.encodings = "words"
    return made


def test_objects_that_move_themselves_move_to_a_gpu() -> None:
    batch = {"graph": Graph(torch.ones(2)), "others": [Graph(torch.ones(3)), "text", 1], "x": torch.ones(2)}
    moved = to_device(batch, META)
    assert moved["graph"].nodes.device == moved["others"][0].nodes.device == moved["x"].device == META
    assert moved["others"][1:] == ["text", 1]
    assert to_device(encoding(), META).encodings == "words"


def test_a_packed_sequence_keeps_its_batch_sizes_on_the_cpu() -> None:
    """torch requires this."""
    moved = to_device({"x": pack_sequence([torch.ones(3), torch.ones(2)])}, META)["x"]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device, moved.batch_sizes.device.type) == (META, "cpu")


def test_the_host_waits_for_a_copy_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch copies into pinned memory, and the host could read the memory before the copy is complete."""
    waits = []
    monkeypatch.setattr(batches, "_only_cpu", lambda: False)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking: waits.append(not non_blocking))
    to_device(torch.ones(1), torch.device("cpu"), non_blocking=True)
    to_device(torch.ones(1), torch.device("cuda", 0), non_blocking=True)
    assert waits == [True, False]


@pytest.mark.parametrize("wrap", [lambda batch: WorkerBatch(batch, 0, {}), lambda batch: PaddedBatch(batch, 0)])
def test_a_pinned_batch_has_the_type_that_it_has_without_wrapper(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    pinned = pin_memory(wrap({"graph": Graph(torch.ones(1)), "encoding": encoding(), "rows": (torch.ones(1), "a")}))
    assert isinstance(pinned, type(wrap(None)))
    assert pinned.batch["graph"].pinned
    assert (pinned.batch["encoding"].encodings, pinned.batch["encoding"]["x"].tolist()) == ("words", [2.0, 2.0])
    assert (pinned.batch["rows"][0].item(), pinned.batch["rows"][1]) == (2.0, "a")


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let two ranks send by nccl, which refuses tensors on the CPU. Return the classes of the sent tensors."""
    sent: list[str] = []
    real = torch.Tensor.to

    class OnGPU(torch.Tensor):
        """Stands for a tensor on a GPU."""

    def to(tensor: torch.Tensor, device: Any, **options: Any) -> torch.Tensor:
        if torch.device(device).type == "cuda":
            return tensor.as_subclass(OnGPU)
        return real(tensor.as_subclass(torch.Tensor), device, **options)

    def all_reduce(tensor: torch.Tensor) -> None:
        sent.append(type(tensor).__name__)
        tensor.mul_(2)

    def all_gather(parts: list[torch.Tensor], tensor: torch.Tensor) -> None:
        sent.append(type(tensor).__name__)
        for part in parts:
            part.copy_(tensor)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(Ranks, "_device", property(lambda self: torch.device("cuda", 1)))
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    return sent


def test_nccl_sends_tensors_of_the_cpu_from_the_gpu(nccl: list[str]) -> None:
    """For example, an override of `prediction_step` returns tensors on the CPU."""
    ranks, given = Ranks(0, 2), torch.ones(2, 2)
    assert ranks.sum(given).tolist() == [[2.0, 2.0]] * 2
    assert ranks.gather(torch.tensor(3)).tolist() == [3, 3]
    assert type(ranks.gather_padded(given)) is torch.Tensor
    assert given.tolist() == [[1.0, 1.0]] * 2
    assert set(nccl) == {"OnGPU"}


@pytest.mark.parametrize(
    ("world_size", "uses_cuda", "device", "expected"),
    [(2, False, "cuda:1", ["cuda:1"]), (1, True, "cuda:1", ["cuda:1"]), (1, False, "cuda:1", []), (2, True, "cpu", [])],
)
def test_the_device_of_a_rank_is_the_current_device(
    world_size: int, uses_cuda: bool, device: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the program has created the process group."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: uses_cuda)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(str(device)))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr("trainbus.engine.distributed.ranks._leave_at_exit", lambda ranks: None)
    Ranks(0, world_size).join(torch.device(device), None, 10)
    assert current == expected


def test_a_batch_of_the_program_moves_to_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL calls `_prepare_inputs` with tensors that it has made on the CPU. A program may call `prediction_step`."""
    moved = []
    trainer = tiny_trainer(tmp_path)
    monkeypatch.setattr("trainbus.engine.api.moments.to_device", lambda batch, device: moved.append(device) or batch)
    batch = trainer.data_collator([trainer.train_dataset[0]])
    trainer._prepare_inputs(batch)
    trainer.prediction_step(trainer.model, batch, False)
    assert moved == [trainer.args.device] * 2


@pytest.mark.parametrize("kind", [BatchEncoding, BatchFeature, Encoding])
@pytest.mark.parametrize("nest", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: [{"a": [x]}]])
def test_nested_tensors_of_a_batch_class_move_to_a_gpu(kind: Any, nest: Any) -> None:
    moved = to_device(kind({"labels": nest(torch.ones(2)), "x": torch.ones(2), "names": ["a"]}), META)
    expected = batches.map_tensors(lambda tensor: tensor.to(META), nest(torch.ones(2)))
    assert type(moved) is kind
    assert moved["names"] == ["a"]
    assert moved["x"].device == META
    assert repr(moved["labels"]) == repr(expected)


def test_an_object_with_a_field_named_to_stays_the_same() -> None:
    message = SimpleNamespace(to="the reader", sender=None)
    moved = to_device({"messages": [message], "x": torch.ones(2)}, META)
    assert moved["messages"] == [message]
    assert moved["x"].device == META
