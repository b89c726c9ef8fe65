"""Resuming with another batch size: each sample is used once per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from support.data import CountedRows, points
from support.models import Regression
from support.trainers import regression_trainer

ROWS = 22


def run(folder: Path, size: int, accumulate: int = 1, **args: Any) -> tuple[Any, CountedRows]:
    """A trainer of two epochs, and its rows, which know when they were read."""
    rows = CountedRows(points(ROWS))
    args = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": accumulate,
        "num_train_epochs": 2,
        "save_strategy": "steps",
        "save_steps": 1,
        **args,
    }
    return regression_trainer(folder, Regression(), args=args, train_dataset=rows), rows


def trained_on(trained: Any) -> list[int]:
    """Subscribe a list of the labels' rows that steps were made of, in order."""
    seen: list[int] = []
    known = {row["labels"].item(): number for number, row in enumerate(points(ROWS))}
    trained.on("on_batch", lambda batch: seen.extend(known[label] for label in batch["labels"].tolist()))
    return seen


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 22, 50])
@pytest.mark.parametrize("stop", [1, 4, 6, 8])
def test_each_sample_is_used_once_per_epoch(stop: int, size: int, accumulate: int, tmp_path: Path) -> None:
    first, _ = run(tmp_path, 4)
    before = trained_on(first)
    first.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=stop)
    first.train()
    second, _ = run(tmp_path, size, accumulate)
    after = trained_on(second)
    second.train(resume_from_checkpoint=True)
    both = before + after
    assert len(both) == 2 * ROWS
    assert sorted(both[:ROWS]) == sorted(both[ROWS:]) == list(range(ROWS))
    assert second.state.global_step == second.state.max_steps
    assert second.state.samples_seen == 2 * ROWS


def test_the_order_is_that_of_the_unbroken_run(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", 4)
    wanted = trained_on(whole)
    whole.train()
    second, _ = run(tmp_path / "second", 3)
    after = trained_on(second)
    second.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert wanted[8:] == after


class Shuffling(Sampler[int]):
    """An order of the user's, drawn from torch's global generator."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(ROWS).tolist())

    def __len__(self) -> int:
        return ROWS


def test_a_custom_sampler_order_resumes(tmp_path: Path) -> None:
    first, _ = run(tmp_path, 4)
    first._get_train_sampler = lambda dataset=None: Shuffling()
    before = trained_on(first)
    first.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=3)
    first.train()
    second, _ = run(tmp_path, 5)
    second._get_train_sampler = lambda dataset=None: Shuffling()
    after = trained_on(second)
    second.train(resume_from_checkpoint=True)
    assert sorted((before + after)[:ROWS]) == [*range(ROWS)]


def test_a_number_of_steps_stays_unchanged(tmp_path: Path) -> None:
    first, _ = run(tmp_path, 4, max_steps=9)
    first.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=3)
    first.train()
    second, _ = run(tmp_path, 2, max_steps=9)
    assert second.train(resume_from_checkpoint=True).global_step == 9


@pytest.mark.parametrize(("epochs", "steps"), [(1.5, 4 + 3 + 6), (0.9, 4 + 2)])
def test_a_fractional_epoch_keeps_its_length_with_another_batch_size(epochs: float, steps: int, tmp_path: Path) -> None:
    first, _ = run(tmp_path, 4, num_train_epochs=epochs)
    first.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=4)
    first.train()
    second, _ = run(tmp_path, 2, num_train_epochs=epochs)  # 11 steps an epoch; rows 16 to 22 are left of the first
    assert second.train(resume_from_checkpoint=True).global_step == steps
