"""`link_unchanged`: files that did not change since the last checkpoint become hard links to its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.checkpoints import names_in
from support.data import points, sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import Trainer, TrainingArguments, every
from trainbus.callbacks import Checkpoint
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write import commit


class PartlyFrozen(nn.Module):
    """A frozen layer that fills a file, and a trained layer in another file."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Linear(3, 100)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(100, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        predicted = self.head(self.frozen(x)).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


def linking(folder: Path, seed: int = 0, **args: Any) -> Any:
    args = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "max_shard_size": "1500", **args}
    return regression_trainer(folder, PartlyFrozen(seed), args={"link_unchanged": True, **args})


def shared(one: Path, other: Path) -> set[str]:
    """Return the names of the files that two checkpoints share."""
    return {name for name in names_in(one) if (other / name).exists() and (one / name).samefile(other / name)}


def steps(folder: Path) -> list[Path]:
    return [folder / f"checkpoint-{step}" for step in (1, 2, 3)]


@pytest.mark.parametrize("later", [True, False], ids=["on a thread", "in step"])
def test_unchanged_files_are_shared_and_all_checkpoints_are_complete(later: bool, tmp_path: Path):
    linking(tmp_path / "linked", async_save=later).train()
    linking(tmp_path / "copied", async_save=later, link_unchanged=False).train()
    one, two, three = steps(tmp_path / "linked")
    frozen = shared(one, three)
    assert frozen == shared(one, two) == shared(two, three)
    assert any(name.startswith("model-") for name in frozen)
    assert not any(name.startswith(("optimizer", "trainer_state", "callbacks", "manifest")) for name in frozen)
    for linked, copied in zip(steps(tmp_path / "linked"), steps(tmp_path / "copied")):
        assert problems(linked, full=True) == []
        assert names_in(linked) == names_in(copied)
        for name in (name for name in names_in(linked) if name.startswith("model")):
            assert (linked / name).read_bytes() == (copied / name).read_bytes(), name
    assert shared(*steps(tmp_path / "copied")[:2]) == set()


def test_a_run_resumes_from_linked_files_and_links_to_them(tmp_path: Path):
    folder = tmp_path / "resumed"
    whole = linking(tmp_path / "whole", lr_scheduler_type="constant")
    whole.train()
    linking(folder, max_steps=2, lr_scheduler_type="constant").train()
    again = linking(folder, seed=1, lr_scheduler_type="constant")
    again.train(resume_from_checkpoint=True)
    assert same_weights(weights(again.model), weights(whole.model))
    one, two, three = steps(folder)
    both = shared(one, two) & shared(two, three)
    assert {name for name in both if name.startswith("model-")}


def test_a_rotated_checkpoint_leaves_its_shared_files_to_the_others(tmp_path: Path):
    linking(tmp_path, save_total_limit=1).train()
    one, _, three = steps(tmp_path)
    assert not one.exists()
    assert problems(three, full=True) == []


@pytest.mark.parametrize("later", [True, False], ids=["on a thread", "in step"])
def test_no_file_is_linked_to_one_that_changed_after_its_save(later: bool, tmp_path: Path):
    """The size and the manifest do not show the change."""
    run = linking(tmp_path, async_save=later)

    def damage() -> None:
        for path in (tmp_path / "checkpoint-1").glob("model-*"):
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)

    run.on("on_commit", damage, once=1)
    run.train()
    one, two, three = steps(tmp_path)
    assert problems(one, full=True)
    assert problems(two, full=True) == problems(three, full=True) == []
    assert not any(name.startswith("model-") for name in shared(one, two))
    assert any(name.startswith("model-") for name in shared(two, three))


def test_the_first_save_makes_a_folder_that_does_not_exist(tmp_path: Path):
    """The folder may also be deleted between two saves."""
    run = linking(tmp_path / "deep" / "out", async_save=False)
    run.on("on_save_begin", lambda: shutil.rmtree(tmp_path / "deep", ignore_errors=True), once=2)
    run.train()
    assert [path.name for path in sorted((tmp_path / "deep" / "out").glob("checkpoint-*"))] == [
        "checkpoint-2",
        "checkpoint-3",
    ]
    assert problems(tmp_path / "deep" / "out" / "checkpoint-3", full=True) == []


def test_no_file_is_linked_to_a_symbolic_link(tmp_path: Path):
    """It may point to a file outside of the checkpoint."""
    run = linking(tmp_path / "out", async_save=False)

    def move_outside() -> None:
        for path in (tmp_path / "out" / "checkpoint-1").glob("model-*"):
            path.rename(tmp_path / path.name)
            path.symlink_to(tmp_path / path.name)

    run.on("on_commit", move_outside, once=1)
    run.train()
    _, two, three = steps(tmp_path / "out")
    assert problems(two, full=True) == problems(three, full=True) == []
    assert not any(path.is_symlink() for path in two.iterdir())


@pytest.mark.parametrize("manifest", ["", "{", '{"files": 3}'], ids=["empty", "torn", "wrong"])
def test_a_last_checkpoint_without_a_good_manifest_is_not_linked_to(manifest: str, tmp_path: Path):
    linking(tmp_path, max_steps=1).train()
    (tmp_path / "checkpoint-1" / "manifest.json").write_text(manifest)
    run = linking(tmp_path, max_steps=1)
    run.args.output_dir = str(tmp_path)
    run.train()
    assert problems(tmp_path / "checkpoint-1", full=True) == []


def test_a_missing_file_of_the_last_checkpoint_is_written_again(tmp_path: Path):
    run = linking(tmp_path, async_save=False)
    run.on("on_commit", lambda: [path.unlink() for path in (tmp_path / "checkpoint-1").glob("model-*")], once=1)
    run.train()
    assert all(problems(path, full=True) == [] for path in steps(tmp_path)[1:])


def test_a_file_system_without_hard_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    linking(tmp_path).train()
    assert all(problems(path, full=True) == [] for path in steps(tmp_path))
    assert shared(*steps(tmp_path)[:2]) == set()
    assert not list(tmp_path.rglob("*.link"))


def test_a_checkpoint_that_is_copied_elsewhere_is_complete(tmp_path: Path):
    run = linking(tmp_path)
    run.train()
    shutil.copytree(tmp_path / "checkpoint-3", tmp_path / "elsewhere" / "checkpoint-3")
    shutil.rmtree(tmp_path / "checkpoint-1")
    shutil.rmtree(tmp_path / "checkpoint-2")
    for path in (tmp_path / "elsewhere" / "checkpoint-3", tmp_path / "checkpoint-3"):
        assert problems(path, full=True) == []


def test_files_of_transformers_are_shared(tmp_path: Path):
    """The model and its configuration are written by `save_pretrained`."""
    model = bert()
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "max_shard_size": "4KB", "link_unchanged": True}
    regression_trainer(tmp_path, model, args=args, train_dataset=sentences(20)).train()
    files = shared(tmp_path / "checkpoint-1", tmp_path / "checkpoint-2")
    assert "config.json" in files
    assert sum(name.startswith("model-") for name in files) > 3


def test_the_callback_has_the_same_option(tmp_path: Path):
    args = TrainingArguments(str(tmp_path), max_steps=2, max_shard_size="1500", report_to="none", disable_tqdm=True)
    checkpoint = Checkpoint(every(1), link_unchanged=True)
    Trainer(PartlyFrozen(), args, train_dataset=points(8), callbacks=[checkpoint]).train()
    assert shared(tmp_path / "checkpoint-1", tmp_path / "checkpoint-2")


def test_a_linked_file_is_not_synchronised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synchronised: list[Path] = []
    really = commit._synchronise

    def synchronise(path: Path) -> None:
        synchronised.append(path)
        really(path)

    monkeypatch.setattr(commit, "_synchronise", synchronise)
    linking(tmp_path, async_save=False, max_steps=2).train()
    shared_files = shared(*steps(tmp_path)[:2])
    second = {path.name for path in synchronised if "checkpoint-2" in path.parent.name}
    assert shared_files
    assert not shared_files & second
    assert set(names_in(tmp_path / "checkpoint-2")) - shared_files <= second
