"""A save makes as many file system calls when a folder holds many checkpoints as when it holds few."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments

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
