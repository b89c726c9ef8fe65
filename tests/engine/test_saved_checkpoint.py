"""SavedCheckpoint: one object for each checkpoint on disk. It parses each file once and loads what was verified."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import transformers

from support.checkpoints import commit, flip, saving
from support.data import points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import hushed
from trainbus.engine.checkpoint.format.files import CALLBACKS, OPTIMIZER, SCHEDULER
from trainbus.engine.checkpoint.format.sharded import as_tensor
from trainbus.engine.checkpoint.read.choosing import choose
from trainbus.engine.checkpoint.read.hf_checkpoint import HFStateFiles
from trainbus.engine.checkpoint.read.native_checkpoint import NativeStateFiles
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.state_files import StatePart
from trainbus.engine.checkpoint.read.verify import Check
from trainbus.events import CheckpointError

RANDOM = "rng_state_0.safetensors"
TENSOR_FILES = (OPTIMIZER, SCHEDULER, CALLBACKS, RANDOM)


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three steps, each saved. Tests do not change it."""
    folder = tmp_path_factory.mktemp("three steps")
    saving(folder, 3).train()
    return folder


@pytest.fixture
def run_folder(three_steps: Path, tmp_path: Path) -> Path:
    """A copy of it that tests may change."""
    return Path(shutil.copytree(three_steps, tmp_path / "run"))


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of transformers' Trainer."""
    folder = tmp_path_factory.mktemp("hf")
    with hushed():
        args = transformers.TrainingArguments(
            str(folder), use_cpu=True, save_steps=2, max_steps=2, report_to="none", disable_tqdm=True
        )
        transformers.Trainer(Regression(), args, train_dataset=points(20)).train()
    return folder / "checkpoint-2"


_counters: list[Counter[str]] = []


def _count_open(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _counters and isinstance(arguments[0], str):
        path, mode = Path(arguments[0]), arguments[1]
        if path.parent.name.startswith("checkpoint-") and (mode is None or "r" in mode):
            _counters[-1][f"{path.parent.name}/{path.name}"] += 1


sys.addaudithook(_count_open)


@contextmanager
def counted_opens(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Count how often Python, and safetensors, open each file of a checkpoint for reading."""
    opened, mapped = Counter[str](), Counter[str]()
    really = safetensors.safe_open

    def counts(path: Any, *arguments: Any, **options: Any) -> Any:
        mapped[f"{Path(path).parent.name}/{Path(path).name}"] += 1
        return really(path, *arguments, **options)

    with monkeypatch.context() as patch:
        for name in ("format.tensor_file", "format.sharded", "read.verify", "read.weights"):
            patch.setattr(importlib.import_module(f"trainbus.engine.checkpoint.{name}"), "safe_open", counts)
        _counters.append(opened)
        try:
            yield opened, mapped
        finally:
            _counters.pop()


@pytest.mark.parametrize("wanted", [True, "auto", "path"])
def test_choosing_and_resuming_reads_each_manifest_once(wanted: Any, run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    flip(run_folder / "checkpoint-3" / "model.safetensors")
    run = saving(run_folder, 4, seed=1, save_strategy="no")
    with counted_opens(monkeypatch) as (opened, mapped):
        run.train(resume_from_checkpoint=str(run_folder / "checkpoint-2") if wanted == "path" else wanted)
    assert run.state.global_step == 4
    read = {name: count for name, count in opened.items() if name.endswith("manifest.json")}
    tried = ["checkpoint-2"] if wanted == "path" else ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert read == {f"{name}/manifest.json": 1 for name in tried}
    # Verification reads every file once. Loading maps the weights, and parses what was read of all other files.
    of_chosen = {name.removeprefix("checkpoint-2/"): count for name, count in opened.items() if "checkpoint-2/" in name}
    assert set(of_chosen.values()) == {1}, of_chosen
    assert of_chosen.keys() == {path.name for path in (run_folder / "checkpoint-2").iterdir()}
    assert mapped["checkpoint-2/model.safetensors"] == 1


def test_a_damaged_path_and_its_neighbours_are_read_once(run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    flip(run_folder / "checkpoint-3" / "model.safetensors")
    with counted_opens(monkeypatch) as (opened, _), pytest.raises(CheckpointError, match="checkpoint-2, which is good"):
        choose(run_folder, run_folder / "checkpoint-3")
    assert {opened[f"checkpoint-{step}/manifest.json"] for step in (1, 2, 3)} == {1}


def test_resuming_from_transformers_reads_each_file_once(
    hf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = saving(tmp_path, 3, save_strategy="no")
    with counted_opens(monkeypatch) as (opened, _):
        run.train(resume_from_checkpoint=str(hf_folder))
    assert opened["checkpoint-2/trainer_state.json"] == 1
    assert opened["checkpoint-2/manifest.json"] == 0


def test_opening_reads_no_file_and_each_file_is_parsed_once(three_steps: Path, monkeypatch: pytest.MonkeyPatch):
    with counted_opens(monkeypatch) as (opened, _):
        checkpoint = SavedCheckpoint.open(three_steps / "checkpoint-2")
        assert (checkpoint.path, checkpoint.step) == (three_steps / "checkpoint-2", 2)
        assert not opened
        for _ in range(2):
            assert checkpoint.recorded_step == checkpoint.state["global_step"] == 2
            assert (checkpoint.world_size, checkpoint.metrics, checkpoint.is_listed) == (1, {}, True)
            assert checkpoint.run_id == checkpoint.state["run_id"] != ""
            assert checkpoint.time > 0 < checkpoint.seconds
            assert checkpoint.missing_parts() == [StatePart.SCALER]
    assert opened == {"checkpoint-2/manifest.json": 1, "checkpoint-2/trainer_state.json": 1}


def test_its_contents_are_those_of_the_run(tmp_path: Path):
    run = saving(tmp_path, 2)
    run.train()
    checkpoint = SavedCheckpoint.open(str(tmp_path / "checkpoint-2"))
    assert checkpoint.problems() == checkpoint.problems(full=False) == []
    assert same_weights(checkpoint.weights(), weights(run.model))
    again = Regression(dropout=0.3, seed=9)
    checkpoint.load_weights(again)
    assert same_weights(weights(again), weights(run.model))
    saved, live = checkpoint.optimizer_state(), run.optimizer.state_dict()
    assert saved["state"].keys() == live["state"].keys()
    assert torch.equal(saved["state"][0]["exp_avg"].whole(), live["state"][0]["exp_avg"])
    assert {"python", "numpy", "torch", "losses"} <= checkpoint.own(0).keys()
    assert checkpoint.own(1, 2) == {}
    assert isinstance(checkpoint.callback_states(), dict)
    assert repr(checkpoint) == f"SavedCheckpoint({str(tmp_path / 'checkpoint-2')!r})"


def test_checkpoints_of_both_libraries_have_one_interface(three_steps: Path, hf_folder: Path):
    ours, theirs = (SavedCheckpoint.open(folder) for folder in (three_steps / "checkpoint-2", hf_folder))
    assert isinstance(ours.state_files, NativeStateFiles)
    assert isinstance(theirs.state_files, HFStateFiles)
    for checkpoint in (ours, theirs):
        assert checkpoint.problems() == []
        assert checkpoint.step == checkpoint.recorded_step == 2
        assert checkpoint.missing_parts() == [StatePart.SCALER]
        assert checkpoint.weights().keys() == ours.weights().keys()
        assert checkpoint.optimizer_state()["param_groups"][0]["params"] is not None
        assert {"python", "numpy", "torch"} <= checkpoint.own(0).keys()
        assert checkpoint.state_files.has_rng_states()
    assert (theirs.run_id, theirs.world_size, theirs.is_listed, theirs.callback_states()) == ("", None, False, {})


def change_state(folder: Path) -> None:
    path = folder / "trainer_state.json"
    path.write_text(path.read_text().replace('"global_step": 2', '"global_step": 9'))


CHANGES: dict[str, tuple[Callable[[Path], Any], Callable[[SavedCheckpoint], Any]]] = {
    "trainer_state.json": (change_state, lambda checkpoint: checkpoint.state["global_step"]),
    OPTIMIZER: (
        lambda folder: flip(folder / OPTIMIZER),
        lambda checkpoint: as_tensor(checkpoint.optimizer_state()["state"][0]["exp_avg"]),
    ),
    RANDOM: (lambda folder: flip(folder / RANDOM), lambda checkpoint: checkpoint.own(0)["torch"]),
    CALLBACKS: (lambda folder: (folder / CALLBACKS).unlink(), lambda checkpoint: checkpoint.callback_states()),
    "manifest.json": (lambda folder: (folder / "manifest.json").write_text("{"), lambda checkpoint: checkpoint.run_id),
}


@pytest.mark.parametrize("name", CHANGES)
def test_verified_content_is_loaded_even_if_the_file_changes(name: str, run_folder: Path):
    change, read = CHANGES[name]
    folder = run_folder / "checkpoint-2"
    before = read(SavedCheckpoint.open(folder))
    checkpoint = SavedCheckpoint.open(folder)
    assert checkpoint.problems(check=Check(keep_tensors=True)) == []
    change(folder)
    if name == CALLBACKS:
        (folder / CALLBACKS).write_bytes(b"no tensors")
    assert repr(read(checkpoint)) == repr(before) or torch.equal(read(checkpoint), before)
    assert SavedCheckpoint.open(folder).problems() != []


def test_a_folder_without_a_step_in_its_name_takes_it_from_its_files(run_folder: Path, tmp_path: Path):
    renamed = (run_folder / "checkpoint-2").rename(tmp_path / "best")
    assert SavedCheckpoint.open(renamed).step == 2
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        _ = SavedCheckpoint.open(tmp_path / "nowhere").step


def test_a_broken_manifest_is_a_problem_and_no_error_of_the_listing(tmp_path: Path):
    folder = commit(tmp_path, 1)
    (folder / "manifest.json").write_text("{")
    checkpoint = SavedCheckpoint.open(folder)
    assert (checkpoint.run_id, checkpoint.time, checkpoint.metrics, checkpoint.world_size) == ("", 0.0, {}, None)
    [problem] = checkpoint.problems(full=False)
    assert problem.startswith("manifest.json cannot be read")


def test_the_former_module_still_serves_older_programs(three_steps: Path):
    store = importlib.import_module("trainbus.engine.checkpoint.store")
    model = Regression(dropout=0.3, seed=9)
    store.load_weights(model, three_steps / "checkpoint-2")
    checkpoint = SavedCheckpoint.open(three_steps / "checkpoint-2")
    assert same_weights(weights(model), checkpoint.weights())
    assert store.read_state(three_steps / "checkpoint-2") == checkpoint.state
    assert store.callback_states(three_steps / "checkpoint-2") == checkpoint.callback_states()
    assert {"Snapshot", "take", "write", "together", "restore_optimizer", "read_own"} <= set(dir(store))
