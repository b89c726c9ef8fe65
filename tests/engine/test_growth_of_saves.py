"""A save makes as many file system calls when a folder holds many checkpoints as when it holds few."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import xxhash
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments
from trainbus.engine.checkpoint.format import hashing, tensor_file
from trainbus.engine.checkpoint.write import commit, model_files, save

COUNTED = ("stat", "lstat", "scandir", "listdir", "open")


@pytest.mark.parametrize("limit", [None, 2])
def test_a_save_does_not_read_the_other_checkpoints(
    limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def counting(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            next(calls)
            return original(*args, **options)

        return call

    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    args = TrainingArguments(
        str(tmp_path), max_steps=36, save_steps=1, save_total_limit=limit, use_cpu=True, report_to="none"
    )
    data = TensorDataset(x, (x.sum(1) > 0).long())
    trainer = Trainer(nn.Linear(4, 2), args, train_dataset=data, criterion=nn.CrossEntropyLoss())
    counts: dict[int, int] = {}
    trainer.on("on_step_begin", lambda state: counts.update({state.global_step: next(calls)}))
    for name in COUNTED:
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    trainer.train()
    early, late = counts[12] - counts[8], counts[34] - counts[30]
    assert early > 40, "the calls of the saves are counted"
    assert late <= early * 1.25, f"{late / 4} calls a save with 30 checkpoints, {early / 4} with 8"


def test_a_save_hashes_and_reads_each_byte_at_most_once_and_writes_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    read: list[int] = []
    hashed: list[int] = []

    class CountingHash:
        def __init__(self) -> None:
            self.of = xxhash.xxh3_128()

        def update(self, data: Any) -> None:
            hashed.append(len(data))
            self.of.update(data)

        def hexdigest(self) -> str:
            return self.of.hexdigest()

    def counting_digest(path: Path, algorithm: Any) -> Any:
        read.append(path.stat().st_size)
        return hashing.digest_of(path, algorithm)

    def counting_write(file: Any, tensors: Any, metadata: Any) -> None:
        original(SimpleNamespace(write=lambda data: (writes.append(len(data)), file.write(data))), tensors, metadata)

    original = tensor_file.write_tensors
    for module in (save, model_files):
        monkeypatch.setattr(module, "write_tensors", counting_write)
    monkeypatch.setattr(hashing.Xxh3Digest, "new", CountingHash)
    monkeypatch.setattr(commit, "digest_of", counting_digest)
    model = nn.Linear(800, 800)
    data = TensorDataset(torch.randn(4, 800, generator=torch.Generator().manual_seed(0)), torch.zeros(4).long())
    args = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none")
    Trainer(model, args, train_dataset=data, criterion=nn.CrossEntropyLoss()).train()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "checkpoint-1").iterdir()}
    assert sizes["optimizer.safetensors"] > 5_000_000
    tensor_bytes = sum(size for name, size in sizes.items() if name.endswith(".safetensors"))
    assert sum(writes) == tensor_bytes
    assert max(writes) == 1 << 20
    assert sum(hashed) == sum(sizes.values())
    assert read == [sizes["model.safetensors"]]
