"""Verification of a checkpoint, and the choice of the one to resume from when some are damaged."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from support.checkpoints import GONE, chosen, commit, flip, names_in, of_the_first_format, rewrite, saving
from support.data import points
from support.models import Regression
from support.outcomes import same_weights, weights
from trainbus.engine.checkpoint.format.files import VERSION, Hidden
from trainbus.engine.checkpoint.format.hashing import ALGORITHMS, Algorithm, Digest, Xxh3Digest, digest_of
from trainbus.engine.checkpoint.read.listing import list_checkpoints, survey
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.events import CheckpointError
from trainbus.events.errors import MissingExtra

# One checkpoint.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of three files."""
    return commit(tmp_path, 1)


def test_a_committed_checkpoint_has_no_problem(folder: Path):
    assert problems(folder, full=True) == problems(folder, full=False) == []
    (folder / "notes.txt").write_text("what others put beside it is their affair")
    assert problems(folder, full=True) == []


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / "model.json").unlink(), r"model\.json is missing"),
        (lambda f: (f / "model.json").write_text(""), r"model\.json has 0 bytes, but 7 were written"),
        (lambda f: (f / "model.json").write_text("weigh"), r"model\.json has 5 bytes, but 7 were written"),
        (lambda f: (f / "manifest.json").write_text("{"), r"manifest\.json cannot be read: Expecting.*"),
        (lambda f: (f / "manifest.json").write_text("[" * 9999), r"manifest\.json cannot be read: .*"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe"), r"manifest\.json cannot be read: .*codec.*"),
        (lambda f: (f / "manifest.json").write_text("[]"), r"manifest\.json cannot be read: it is not an object"),
        (
            lambda f: rewrite(f, files={"a": 3}),
            r"manifest\.json cannot be read: its 'files' entry for 'a' is 3, not a size and SHA-256 or XXH3",
        ),
        (
            lambda f: rewrite(f, files={"a": {"size": 3}}),
            r"manifest\.json cannot be read: .*, not a size and SHA-256 or XXH3",
        ),
        (
            lambda f: rewrite(f, files={}),
            r"manifest\.json cannot be read: its 'files' do not include trainer_state\.json",
        ),
        (lambda f: rewrite(f, format_version=9), rf"it has format 9, but this release reads formats up to {VERSION}"),
        (shutil.rmtree, r"there is no such folder"),
    ],
)
def test_each_damage_is_reported(folder: Path, damage: Any, expected: str, full: bool):
    damage(folder)
    [found] = problems(folder, full=full)
    assert re.fullmatch(expected, found), found


HASH = "0" * 64
WRONG: dict[str, list[Any]] = {
    "format_version": [None, "3", 0, -1, 1.0, True],
    "step": [None, "1", -1, 2**60, 1.5, True],
    "world_size": [None, "two", 0, -1, 2**60, 1.0, True, [2]],
    "time": [None, "now", -1.0, float("nan"), float("inf"), 10**400, True],
    "seconds": [None, "1", -0.5, float("nan"), float("inf")],
    "run_id": [None, 3, "a" * 300, ["a"]],
    "metrics": [None, 3, []],
    "files": [None, 3, [], *({"a": {"size": size, "sha256": HASH}} for size in (None, "7", -1, 1.5, True))]
    + [{"a": {"size": 7, "sha256": said}} for said in (None, 3, "", "0", HASH + "0", "g" * 64)],
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_field_of_the_manifest_of_another_type_or_out_of_its_range_is_named(folder: Path, field: str, value: Any):
    rewrite(folder, **{field: value})
    for full in (True, False):
        [found] = problems(folder, full=full)
        assert found.startswith("manifest.json cannot be read: ")
        assert f"'{field}'" in found
        assert len(found) < 300
    with pytest.raises(CheckpointError, match=f"manifest.json cannot be read: .*'{field}'"):
        chosen(folder.parent, folder)


def test_a_missing_required_field_is_named(folder: Path):
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    for name, expected in (("format_version", "its 'format_version' is None"), ("files", "it has no 'files'")):
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        [found] = problems(folder, full=True)
        assert expected in found


def test_the_file_list_counts_for_every_manifest_format(folder: Path):
    """The digits 1 and 3 differ in one bit."""
    rewrite(folder, format_version=1)
    flip(folder / "model.json", 3)
    assert problems(folder, full=True)[0].startswith("model.json has changed since it was written")


def test_a_manifest_with_more_ranks_than_its_world_size_is_invalid(folder: Path):
    digest = {"size": 1, "sha256": HASH}
    files = json.loads((folder / "manifest.json").read_text())["files"]
    rewrite(folder, world_size=2, files={**files, "rng_state_2.safetensors": digest})
    [found] = problems(folder, full=False)
    assert found.endswith("its 'world_size' is 2, and its 'files' include rng_state_2.safetensors")


def test_a_resumed_run_is_not_held_up_by_a_number_of_processes_that_cannot_be(tmp_path: Path):
    saving(tmp_path, 1).train()
    rewrite(tmp_path / "checkpoint-1", world_size=2**53)
    run = saving(tmp_path, 2)
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_single_bit_is_found_by_the_full_check_only(folder: Path, algorithm: Algorithm):
    hash_with(folder, algorithm)
    assert problems(folder, full=True) == []
    flip(folder / "model.json", 3)
    assert problems(folder, full=False) == []
    [found] = problems(folder, full=True)
    assert found.startswith(f"model.json has changed since it was written: its {algorithm.title} is ")


def hash_with(folder: Path, algorithm: Algorithm) -> None:
    names = json.loads((folder / "manifest.json").read_text())["files"]
    rewrite(folder, files={name: asdict(digest_of(folder / name, algorithm)) for name in names})


def test_without_xxhash_a_checkpoint_with_xxh3_is_neither_good_nor_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    saving(tmp_path, 2).train()
    hash_with(tmp_path / "checkpoint-1", Digest)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert problems(tmp_path / "checkpoint-1", full=True) == []
    for resume in (True, str(tmp_path / "checkpoint-2")):  # `True` does not go back to checkpoint-1
        with pytest.raises(MissingExtra, match=r"needs xxhash: pip install 'trainbus\[xxhash\]'"):
            saving(tmp_path, 3).train(resume_from_checkpoint=resume)


def test_an_entry_with_two_hashes_is_refused(folder: Path):
    both = {**asdict(digest_of(folder / "model.json", Digest)), **asdict(digest_of(folder / "model.json", Xxh3Digest))}
    rewrite(folder, files={"trainer_state.json": both})
    assert "not a size and SHA-256 or XXH3" in problems(folder, full=False)[0]


def test_all_damages_are_reported(folder: Path):
    (folder / "model.json").unlink()
    flip(folder / "trainer_state.json")
    assert [found.split()[0] for found in problems(folder, full=True)] == ["model.json", "trainer_state.json"]


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", ""])
def test_files_outside_of_the_folder_are_refused_by_name(folder: Path, name: str):
    (folder.parent / "secret").write_text("x")
    digest = digest_of(folder.parent / "secret")
    rewrite(folder, files={name: {"size": digest.size, "sha256": digest.sha256}})
    assert problems(folder, full=True) == [f"manifest.json names {name!r}, which is outside of the folder"]


def test_a_staging_folder_was_never_finished(folder: Path):
    staging = folder.rename(folder.parent / str(Hidden(1, "run", GONE)))
    assert problems(staging, full=True) == ["its write was not finished"]


# Checkpoints without a list of their files.


@pytest.mark.parametrize("wanted", [True, "path"])
def test_checkpoints_without_a_file_list_resume(tmp_path: Path, wanted: Any):
    saving(tmp_path, 4).train()
    of_the_first_format(tmp_path / "checkpoint-4")
    unbroken = saving(tmp_path / "unbroken", 6)
    unbroken.train()
    for step in (1, 2, 3):
        shutil.rmtree(tmp_path / f"checkpoint-{step}")
    run = saving(tmp_path, 6, seed=1)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4") if wanted == "path" else True)
    assert same_weights(weights(run.model), weights(unbroken.model))


def test_missing_files_are_found_without_a_list_of_files(tmp_path: Path):
    saving(tmp_path, 1).train()
    folder = tmp_path / "checkpoint-1"
    of_the_first_format(folder)
    assert problems(folder, full=True) == []
    (folder / "model.safetensors").write_bytes(b"")
    assert problems(folder, full=False) == ["model.safetensors is empty"]
    (folder / "model.safetensors").unlink()
    (folder / "trainer_state.json").write_text("[]")
    assert problems(folder, full=False) == [
        "trainer_state.json does not contain the state of a run",
        "model.safetensors is missing",
    ]
    (folder / "trainer_state.json").unlink()
    assert problems(folder, full=False) == ["trainer_state.json is missing", "model.safetensors is missing"]


FOREIGN = {
    "adapter_model.bin": [],
    "adapter_model.safetensors": [],
    "other/adapter_model.bin": [],
    "other/adapter_model.safetensors": [],
    "pytorch_model.bin": [],
    "parts/first.bin": ["pytorch_model.bin.index.json"],
    "parts/first.safetensors": ["model.safetensors.index.json"],
    "optimizer.pt": ["pytorch_model.bin"],
}
"""A tensor file in a checkpoint without a list of files -> the other files with which the checkpoint is complete."""


@pytest.mark.parametrize("damage", ["truncated", "other bytes"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_damaged_tensor_file_is_named_with_its_subfolder_without_a_list_of_files(
    tmp_path: Path, name: str, damage: str
):
    (tmp_path / "trainer_state.json").write_text("{}")
    for written in (name, *FOREIGN[name]):
        path = tmp_path / written
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".json":
            path.write_text(json.dumps({"weight_map": {"weight": name}}))
        else:
            state = {"weight": torch.ones(64)}
            save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    assert problems(tmp_path, full=True) == []
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-9] if damage == "truncated" else bytes(len(content)))
    [problem] = problems(tmp_path, full=True)
    assert problem.startswith(f"{name} is damaged: ")


def test_an_empty_optimizer_file_is_damaged_without_a_list_of_files(tmp_path: Path):
    (tmp_path / "trainer_state.json").write_text("{}")
    torch.save({"weight": torch.ones(64)}, tmp_path / "pytorch_model.bin")
    torch.save({"weight": torch.ones(64)}, tmp_path / "scheduler.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "optimizer.pt").write_bytes(b"")
    assert problems(tmp_path, full=True) == ["optimizer.pt is damaged: it is empty"]


def test_the_index_of_weights_in_several_files_is_checked(tmp_path: Path):
    (tmp_path / "trainer_state.json").write_text("{}")
    index = tmp_path / "model.safetensors.index.json"
    unreadable = "model.safetensors.index.json cannot be read"
    for said, expected in (
        ({"weight_map": {"a": "one", "b": "two"}}, ["two is missing"]),
        ({"weight_map": {"a": "../one"}}, [f"{unreadable}: it names '../one', which is outside of the folder"]),
        ({"weights": 3}, [f"{unreadable}: it has no 'weight_map'"]),
    ):
        index.write_text(json.dumps(said))
        (tmp_path / "one").write_text("x")
        assert problems(tmp_path, full=True) == expected


def test_a_checkpoint_of_transformers_is_listed(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, save_steps=1, use_cpu=True, report_to="none", disable_tqdm=True
    )
    transformers.Trainer(Regression(), args, train_dataset=points(8)).train()
    assert [(found.step, found.run_id) for found in list_checkpoints(tmp_path)] == [(1, ""), (2, "")]
    (tmp_path / "checkpoint-2" / "model.safetensors").unlink()
    assert [found.step for found in list_checkpoints(tmp_path)] == [1]


def test_a_native_checkpoint_without_its_manifest_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Whichever of its files are left, beside the weights and the state that other libraries write too."""
    saving(tmp_path, 3).train()
    folder = tmp_path / "checkpoint-3"
    (folder / "manifest.json").unlink()
    for name in sorted(set(FILES) - {"model.safetensors", "trainer_state.json"}):
        (folder / name).rename(tmp_path / name)
    assert problems(folder, full=True) == []
    for name in sorted(set(FILES) - {"model.safetensors", "trainer_state.json"}):
        (tmp_path / name).rename(folder / name)
        wrong = f"manifest.json is missing, but {name} exists: without it, the files cannot be verified"
        assert problems(folder, full=False) == [wrong]
        with pytest.raises(CheckpointError, match=f"{wrong}. Resume from .*checkpoint-2, which is good"):
            chosen(tmp_path, folder)
        for wanted in (True, "auto"):
            caplog.clear()
            assert chosen(tmp_path, wanted) == tmp_path / "checkpoint-2"
            assert f"- checkpoint-3: {wrong}" in caplog.text
        (folder / name).rename(tmp_path / name)


# Which one is gone on from.


def test_the_newest_good_one_is_chosen_and_the_others_are_named_in_one_warning(tmp_path: Path, caplog):
    for step in range(1, 7):
        commit(tmp_path, step)
    flip(tmp_path / "checkpoint-6" / "model.json")
    (tmp_path / "checkpoint-5" / "model.json").unlink()
    (tmp_path / "checkpoint-4" / "manifest.json").write_text("")
    flip(tmp_path / "checkpoint-2" / "model.json")  # older than the one that is taken, and not read
    (tmp_path / str(Hidden(7, "run", GONE))).mkdir()
    (tmp_path / str(Hidden(8, "other", os.getppid()))).mkdir()  # somebody writes it
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        assert chosen(tmp_path, True) == tmp_path / "checkpoint-3"
    [message] = caplog.messages
    said = dict(line[2:].split(": ", 1) for line in message.splitlines()[1:])
    assert said.keys() == {"checkpoint-6", "checkpoint-5", "checkpoint-4", str(Hidden(7, "run", GONE))}
    assert f"Resuming from {tmp_path / 'checkpoint-3'}." in message
    assert said["checkpoint-5"] == "model.json is missing"
    assert said[str(Hidden(7, "run", GONE))] == "its write was not finished"


def test_good_checkpoints_give_no_warning(tmp_path: Path, caplog):
    commit(tmp_path, 1)
    newest = commit(tmp_path, 2)
    assert chosen(tmp_path, True) == newest
    assert caplog.messages == []


def test_the_newest_is_of_the_run_that_wrote_last(tmp_path: Path):
    commit(tmp_path, 9, "old", time=1.0)
    commit(tmp_path, 3, "new", time=2.0)
    commit(tmp_path, 4, "new", time=3.0)
    flip(tmp_path / "checkpoint-4" / "model.json")
    assert chosen(tmp_path, True) == tmp_path / "checkpoint-3"
    flip(tmp_path / "checkpoint-3" / "model.json")
    assert chosen(tmp_path, True) == tmp_path / "checkpoint-9"


def test_the_error_names_each_checkpoint_if_all_are_damaged(tmp_path: Path):
    saving(tmp_path, 2).train()
    for step in (1, 2):
        flip(tmp_path / f"checkpoint-{step}" / "model.safetensors")
    run = saving(tmp_path, 2, seed=1)
    before = weights(run.model)
    message = (
        r"no checkpoint to resume from .*no good checkpoint.*\n- checkpoint-2: "
        r"model.*XXH3.*\n- checkpoint-1: model.*XXH3.*"
    )
    with pytest.raises(CheckpointError, match=rf"(?s){message}fresh"):
        run.train(resume_from_checkpoint=True)
    assert same_weights(weights(run.model), before)
    assert run.state.global_step == 0


def test_a_damaged_path_is_an_error_that_names_a_good_one(tmp_path: Path):
    saving(tmp_path, 3).train()
    for step in (2, 3):
        flip(tmp_path / f"checkpoint-{step}" / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match=r"checkpoint-2 cannot.*optimizer\.\w+ has changed.*checkpoint-1, which"):
        saving(tmp_path, 3).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    shutil.rmtree(tmp_path / "checkpoint-1")
    with pytest.raises(CheckpointError, match=r"Its folder has no good checkpoint"):
        saving(tmp_path, 3).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


FILES = (
    *("callbacks.safetensors", "model.safetensors", "optimizer.safetensors", "rng_state_0.safetensors"),
    *("scheduler.safetensors", "trainer_state.json", "training_args.json"),
)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory) -> Path:
    """The folder of a run of two steps."""
    made = tmp_path_factory.mktemp("two steps")
    saving(made, 2).train()
    assert set(names_in(made / "checkpoint-2")) == {*FILES, "manifest.json"}
    return made


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_any_damage_to_any_file_is_found_before_anything_is_changed(tmp_path: Path, two_steps: Path, name: str, caplog):
    content = (two_steps / "checkpoint-2" / name).read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    damages: dict[str, bytes | None] = {
        **{"empty": b"", "half": content[: len(content) // 2], "one byte short": content[:-1], "absent": None},
        "one bit": bytes(flipped),
    }
    if name == "manifest.json":
        del damages["one bit"], damages["one byte short"]  # its last byte is the end of a line
    for number, damaged in enumerate(damages.values()):
        copy = Path(shutil.copytree(two_steps, tmp_path / str(number)))
        (copy / "checkpoint-2" / name).unlink()
        if damaged is not None:
            (copy / "checkpoint-2" / name).write_bytes(damaged)
        caplog.clear()
        assert chosen(copy, True) == copy / "checkpoint-1"
        assert f"- checkpoint-2: {name}" in caplog.text
        with pytest.raises(CheckpointError, match=name):
            chosen(copy, copy / "checkpoint-2")


# Nothing that is read can run code.


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


READ = [name for name in FILES if name != "training_args.json"]


@pytest.mark.parametrize("name", [*READ, "manifest.json"])
@pytest.mark.parametrize("forged", [False, True])
def test_a_pickle_in_place_of_any_file_is_refused_by_name(tmp_path: Path, two_steps: Path, name: str, forged: bool):
    """Also where the manifest was made to agree with it, or where there is none."""
    copy = Path(shutil.copytree(two_steps, tmp_path / "copy")) / "checkpoint-2"
    path, marker = copy / name, tmp_path / "ran"
    path.write_bytes(pickle.dumps(Hostile(marker)))
    if forged and name != "manifest.json":
        manifest = json.loads((copy / "manifest.json").read_text())
        digest = digest_of(path)
        rewrite(copy, files={**manifest["files"], name: {"size": digest.size, "sha256": digest.sha256}})
        assert problems(copy, full=True) == []
    with pytest.raises(CheckpointError, match=name):
        saving(tmp_path / "run", 3).train(resume_from_checkpoint=str(copy))
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists(), "it would have run"


def test_a_pickle_that_other_libraries_would_read_is_not_touched(tmp_path: Path, two_steps: Path):
    copy = Path(shutil.copytree(two_steps, tmp_path / "copy")) / "checkpoint-2"
    for name in (
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "training_args.bin",
        "pytorch_model.bin",
        "scaler.pt",
    ):
        (copy / name).write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    saving(tmp_path / "run", 3).train(resume_from_checkpoint=str(copy))
    assert not (tmp_path / "ran").exists()


def test_survey_and_listing_agree(tmp_path: Path):
    commit(tmp_path, 1)
    (commit(tmp_path, 2) / "model.json").unlink()
    (tmp_path / "checkpoint-3").write_text("no folder")
    (tmp_path / "checkpoint-x").mkdir()
    assert [(found.step, found.problems()) for found in survey(tmp_path)] == [(1, []), (2, ["model.json is missing"])]
    assert [found.step for found in list_checkpoints(tmp_path)] == [1]
    assert survey(tmp_path / "nowhere") == []
