"""A run stopped at any step and resumed equals the uninterrupted run: weights, optimizer, schedule and logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resume_points import COLLATORS, DATA, Stateful, mismatches, run_of

from support.data import CountedRows, points
from trainbus import default_data_collator


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("collator", COLLATORS)
@pytest.mark.parametrize("data", DATA)
def test_a_resume_at_every_step_is_exact(data: str, collator: str, accumulate: int, tmp_path: Path) -> None:
    assert mismatches(tmp_path, data=data, collator=collator, accumulate=accumulate) == []


@pytest.mark.parametrize("collator", COLLATORS)
def test_a_resume_with_workers_is_exact(collator: str, tmp_path: Path) -> None:
    # Before and after each worker has made its first batch of an epoch, at the end of one, and in the second.
    assert mismatches(tmp_path, [1, 2, 5, 6, 9], data="rows", collator=collator, workers=2) == []


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("data", ["stream", "datasets"])
def test_with_workers_that_read_a_stream(data: str, persistent: bool, tmp_path: Path) -> None:
    setting = {"collator": "torch", "workers": 2, "dataloader_persistent_workers": persistent}
    assert mismatches(tmp_path, [3, 6, 8], data=data, **setting) == []


def test_a_resume_with_persistent_workers_is_exact(tmp_path: Path) -> None:
    setting = {"data": "rows", "collator": "numpy", "workers": 2, "dataloader_persistent_workers": True}
    assert mismatches(tmp_path, [4, 6, 8], **setting) == []


def test_a_run_that_was_resumed_can_be_resumed_again(tmp_path: Path) -> None:
    for workers in (0, 2):
        setting = {"data": "rows", "collator": "torch", "workers": workers}
        folder = tmp_path / str(workers)
        whole = run_of(folder / "whole", **setting)
        whole.train()
        for seed, stop in enumerate((3, 4, 8)):
            again = run_of(folder / "again", **setting, seed=seed, save_strategy="steps", save_steps=stop)
            again.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=stop)
            again.train(resume_from_checkpoint=seed > 0)
        last = run_of(folder / "again", **setting, seed=9)
        last.train(resume_from_checkpoint=True)
        for mine, other in zip(last.model.parameters(), whole.model.parameters()):
            assert mine.equal(other)


def test_rows_of_batches_that_were_done_are_not_read_again(tmp_path: Path) -> None:
    whole = run_of(tmp_path, "rows", "torch", save_strategy="steps", save_steps=3, max_steps=6)
    whole.train()
    again = run_of(tmp_path, "rows", "torch", max_steps=6)
    again.train_dataset = rows = CountedRows(points(22))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert len(rows.read) == len(set(rows.read)) == 10  # three batches of 4 are done


def test_a_stream_that_knows_its_place_is_not_read_again(tmp_path: Path) -> None:
    whole = run_of(tmp_path, "stream with a state", "pure", save_strategy="steps", save_steps=3, max_steps=6)
    whole.train()
    again = run_of(tmp_path, "stream with a state", "pure", max_steps=6)
    assert isinstance(again.train_dataset, Stateful)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.train_dataset.read == 10


class Custom:
    """A kind of value that no checkpoint can hold."""


def test_a_batch_of_any_type_is_fetched_again(tmp_path: Path) -> None:
    def collate(features: list) -> dict:
        return {**default_data_collator(features), "extra": Custom()}

    def run(folder: str, **args: object) -> object:
        made = run_of(tmp_path / folder, "rows", "pure", **args)
        made.data_collator = collate
        forward = made.model.forward
        made.model.forward = lambda x, labels=None, extra=None: forward(x=x, labels=labels)
        return made

    whole = run("whole", save_strategy="steps", save_steps=1, remove_unused_columns=False)
    whole.train()
    again = run("again", remove_unused_columns=False)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    for mine, other in zip(again.model.parameters(), whole.model.parameters()):
        assert mine.equal(other)


class Noise(torch.utils.data.Dataset):
    """Rows that each process draws from its own generator."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(3), "labels": torch.zeros(())}


def test_the_saved_workers_of_an_evaluation_serve_only_the_first_loader(tmp_path: Path) -> None:
    def attach(run: Any) -> None:
        def exchange() -> None:
            run.eval_dataset = Noise()

        run.on("on_step_end", exchange, once=5)

    setting = {"data": "rows", "collator": "pure", "workers": 1, "dataloader_persistent_workers": True}
    setting |= {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 8, "attach": attach, "eval_dataset": Noise()}
    assert mismatches(tmp_path, [3], **setting) == []
