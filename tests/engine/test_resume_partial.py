"""Resuming from a checkpoint that lacks a part of the training state: an error unless `resume_partial` is set."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.checkpoints import flip, rewrite, saving
from support.outcomes import same_weights, weights
from trainbus import Callback
from trainbus.engine.api import training as training_module
from trainbus.engine.checkpoint.format.files import CALLBACKS, OPTIMIZER, SCALER, SCHEDULER
from trainbus.engine.checkpoint.format.hashing import digest_in
from trainbus.engine.checkpoint.format.tensor_cache import TensorCache
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.verify import Check
from trainbus.events import CheckpointError

RANDOM = "rng_state_0.safetensors"
RATES = (0.05, 0.0375, 0.025, 0.0125)
"""Of the steps of an unbroken run."""
SAID = "`resume_partial` allows this, and these start fresh: "


class Scaling(Callback):
    """Scales the loss on the CPU."""

    def on_setup(self, run: Any) -> None:
        run.seams.fill("Scaling", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with a loss scaler, all saved."""
    folder = tmp_path_factory.mktemp("saved")
    saving(folder, 4, Scaling(), lr_scheduler_type="linear").train()
    return folder


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    """Its last checkpoint but one, to damage."""
    return Path(shutil.copytree(saved / "checkpoint-3", tmp_path / "checkpoint-3"))


def going_on(folder: Path, wanted: Any, *, partial: bool = True, **args: Any) -> Any:
    """A run that went on from a checkpoint, to step 4."""
    run = saving(folder, 4, Scaling(), seed=1, resume_partial=partial, lr_scheduler_type="linear", **args)
    run.train(resume_from_checkpoint=wanted)
    return run


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said to begin anew, warning by warning."""
    return [record.getMessage().split(SAID)[1] for record in caplog.records if SAID in record.getMessage()]


LACKING: dict[str, tuple[tuple[str, ...], str]] = {
    "the optimizer": ((OPTIMIZER,), "the optimizer."),
    "the schedule": ((SCHEDULER,), "the schedule."),
    "the scaler": ((SCALER,), "the loss scaler."),
    "random states": ((RANDOM,), "random draws."),
    "all of them": (
        (OPTIMIZER, SCHEDULER, SCALER, RANDOM),
        "the optimizer, the schedule, the loss scaler, random draws.",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("newest", [True, False])
def test_missing_state_starts_fresh_with_one_warning(
    lacking: str, newest: bool, checkpoint: Path, saved: Path, caplog: pytest.LogCaptureFixture
):
    names, said = LACKING[lacking]
    for name in names:
        (checkpoint / name).unlink()
    wanted = True if newest else str(checkpoint)
    hint = "(`resume_partial=True` starts this part fresh)"
    with pytest.raises(CheckpointError, match=re.escape(f"{names[0]} is missing {hint}")):
        going_on(checkpoint.parent, wanted, partial=False)
    with caplog.at_level(logging.WARNING):
        run = going_on(checkpoint.parent, wanted)
    assert warned(caplog) == [said]
    assert run.state.global_step == 4
    steps = {int(state["step"]) for state in run.optimizer.state_dict()["state"].values()}
    assert steps == ({1} if OPTIMIZER in names else {4})
    assert run.lr_scheduler.last_epoch == (1 if SCHEDULER in names else 4)
    assert run.run.learning_rate == RATES[0 if SCHEDULER in names else 3]


def test_a_model_only_checkpoint_resumes_from_its_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    saving(tmp_path, 2, save_only_model=True).train()
    with pytest.raises(CheckpointError, match=r"`resume_partial=True` to resume with the state that is there"):
        going_on(tmp_path, True, partial=False)
    seen: list[Any] = []
    run = saving(tmp_path, 3, seed=1, resume_partial=True, logging_steps=1, logging_strategy="steps")
    run.on("on_load", lambda model: seen.append(weights(model)))
    with caplog.at_level(logging.WARNING):
        run.train(resume_from_checkpoint=True)
    assert warned(caplog) == ["the optimizer, the schedule, random draws."]
    assert same_weights(seen[0], load_file(tmp_path / "checkpoint-2" / "model.safetensors"))
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [3]


def test_a_complete_checkpoint_gives_no_warning(checkpoint: Path, saved: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        going_on(checkpoint.parent, True)
    assert warned(caplog) == []


def test_weights_and_damaged_files_are_never_optional(checkpoint: Path):
    flip(checkpoint / OPTIMIZER)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors has changed since it was written"):
        going_on(checkpoint.parent, str(checkpoint))
    (checkpoint / OPTIMIZER).unlink()
    (checkpoint / "callbacks.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"callbacks\.safetensors is missing"):
        going_on(checkpoint.parent, True)
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        going_on(checkpoint.parent, str(checkpoint))


# What is loaded is what was compared.


def test_the_verified_tensors_are_loaded_even_if_the_files_change(saved: Path, tmp_path: Path):
    folder = Path(shutil.copytree(saved / "checkpoint-3", tmp_path / "checkpoint-3"))
    unbroken = saving(tmp_path / "unbroken", 4, Scaling(), lr_scheduler_type="linear")
    unbroken.train()
    run = saving(tmp_path, 4, Scaling(), seed=1, lr_scheduler_type="linear")
    run.on("on_setup", lambda: [flip(folder / name, -9) for name in (OPTIMIZER, RANDOM, SCALER)])
    run.train(resume_from_checkpoint=str(folder))
    assert same_weights(weights(run.model), weights(unbroken.model))


def test_verified_tensors_are_kept_and_taken_once(saved: Path):
    cache = TensorCache()
    path = saved / "checkpoint-2" / OPTIMIZER
    entry = json.loads((path.parent / "manifest.json").read_text())["files"][OPTIMIZER]
    written = digest_in(entry)
    assert cache.digest_of(path, type(written)) == written
    assert path in cache
    tensors, metadata = cache.take(path)
    assert path not in cache
    again, same = cache.take(path)
    assert metadata == same
    assert tensors.keys() == again.keys()
    for name, tensor in tensors.items():
        assert tensor.equal(again[name])
        assert tensor is not again[name]
        assert tensor.data_ptr() % 64 == 0
    cache.digest_of(saved / "checkpoint-1" / "model.safetensors")
    assert saved / "checkpoint-1" / "model.safetensors" not in cache
    cache.digest_of(path)
    cache.clear()
    assert path not in cache


def test_a_damaged_checkpoint_keeps_no_tensors(saved: Path, tmp_path: Path):
    folder = Path(shutil.copytree(saved / "checkpoint-3", tmp_path / "checkpoint-3"))
    keeping = Check(keep_tensors=True)
    good = SavedCheckpoint.open(folder)
    assert good.problems(check=keeping) == []
    assert good.keeps(OPTIMIZER)
    flip(folder / "model.safetensors")
    damaged = SavedCheckpoint.open(folder)
    assert damaged.problems(check=keeping) != []
    assert not damaged.keeps(OPTIMIZER)


def test_verified_tensors_are_released_after_loading(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    chosen: list[SavedCheckpoint] = []
    really = training_module.checkpoint_to_resume

    def chooses(*arguments: Any) -> Any:
        chosen.append(really(*arguments))
        assert all(chosen[0].keeps(name) for name in (OPTIMIZER, SCHEDULER, SCALER, RANDOM, CALLBACKS))
        return chosen[0]

    monkeypatch.setattr(training_module, "checkpoint_to_resume", chooses)
    going_on(checkpoint.parent, True, restore_callback_states_from_checkpoint=False)
    assert not [path for path in checkpoint.iterdir() if chosen[0].keeps(path.name)]


def test_files_that_are_not_tensors_are_still_hashed(checkpoint: Path):
    (checkpoint / OPTIMIZER).write_bytes(b"no tensors")
    digest = TensorCache().digest_of(checkpoint / OPTIMIZER)
    assert digest.size == len(b"no tensors")
    entry = {"size": digest.size, "sha256": digest.sha256}
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    rewrite(checkpoint, files={**files, OPTIMIZER: entry})
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors cannot be read"):
        going_on(checkpoint.parent, str(checkpoint))
