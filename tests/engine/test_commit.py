"""Commits: a checkpoint is complete under its name, or absent."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import xxhash
from kill_program import forked
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from support.checkpoints import GONE, commit, names_in, saving, stage
from trainbus.engine.checkpoint.format.files import VERSION, Checkpoint, Hidden, hidden_name, parse_hidden, this_host
from trainbus.engine.checkpoint.format.tensor_file import write_tensors
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write import commit as committing
from trainbus.engine.checkpoint.write.commit import HashedFile, put_back, remove, sweep
from trainbus.engine.checkpoint.write.model_files import save_weights
from trainbus.engine.checkpoint.write.save import on_all_ranks
from trainbus.events import CheckpointError
from trainbus.events.activity import Activity

# The manifest.


@pytest.mark.parametrize(
    ("has_xxhash", "hashed"),
    [
        (True, lambda content: {"xxh3_128": xxhash.xxh3_128_hexdigest(content)}),
        (False, lambda content: {"sha256": hashlib.sha256(content).hexdigest()}),
    ],
)
def test_the_manifest_has_size_and_hash_of_every_file_and_facts_of_the_run(
    has_xxhash: bool, hashed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not has_xxhash:
        monkeypatch.setitem(sys.modules, "xxhash", None)
    run = saving(tmp_path, 3)
    run.train()
    folder = tmp_path / "checkpoint-3"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == set(names_in(folder)) - {"manifest.json"}
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"size": len(content), **hashed(content)}
    assert (manifest["format_version"], manifest["step"], manifest["world_size"]) == (VERSION, 3, 1)
    assert manifest["run_id"] == run.run.run_id
    assert 0 < manifest["seconds"] <= run.run.seconds()
    assert abs(manifest["time"] - (folder / "manifest.json").stat().st_mtime) < 5


def test_others_may_read_all_that_they_may_read_of_a_common_file(tmp_path: Path):
    common = tmp_path / "common"
    common.write_text("")
    saving(tmp_path / "run", 1).train()
    modes = {path.stat().st_mode for path in (tmp_path / "run" / "checkpoint-1").iterdir()}
    assert modes == {common.stat().st_mode}


# The order of what is done.


def test_everything_is_on_the_disk_before_the_name_and_the_name_before_anything_is_deleted(tmp_path: Path, monkeypatch):
    commit(tmp_path, 1)
    done: list[tuple[str, str]] = []
    opened: dict[int, str] = {}
    really = {name: getattr(os, name) for name in ("open", "fsync", "rename", "rmdir")}

    def opening(path, *rest, **options):
        descriptor = really["open"](path, *rest, **options)
        opened[descriptor] = Path(path).name
        return descriptor

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "fsync", lambda it: (really["fsync"](it), done.append(("fsync", opened[it])))[0])
    monkeypatch.setattr(os, "rename", lambda a, b: (really["rename"](a, b), done.append(("rename", Path(b).name)))[0])
    monkeypatch.setattr(os, "rmdir", lambda *a, **b: (really["rmdir"](*a, **b), done.append(("rmdir", "")))[0])
    commit(tmp_path, 1)
    first_rename = next(index for index, (what, _) in enumerate(done) if what == "rename")
    staging, aside = str(hidden_name(1, "run")), str(hidden_name(1, "run", "-replaced"))
    files = {"model.json", "trainer_state.json", "manifest.json"}
    assert {name for what, name in done[:first_rename] if what == "fsync"} == files | {staging}
    assert done[first_rename:] == [
        *[("rename", aside), ("rename", "checkpoint-1"), ("fsync", tmp_path.name), ("rmdir", "")],
    ]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path):
    commit(tmp_path, 1, model="old")
    commit(tmp_path, 1, model="new")
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert (tmp_path / "checkpoint-1" / "model.json").read_text() == "new"
    assert problems(tmp_path / "checkpoint-1", full=True) == []


@pytest.mark.parametrize("failing", ["the old one away", "the new one in", "the folder's names"])
def test_a_failed_replacement_keeps_the_old_checkpoint(failing: str, tmp_path: Path, monkeypatch):
    commit(tmp_path, 1, model="old")
    staging = stage(tmp_path, 1, model="new")
    really, calls = os.rename, []

    def rename(source, target):
        calls.append(target)
        if len(calls) == {"the old one away": 1, "the new one in": 2}.get(failing, 0):
            raise OSError("no")
        really(source, target)

    def synchronise(paths):
        if list(paths) == [tmp_path] and failing == "the folder's names":
            raise OSError("no")

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(committing, "synchronise", synchronise)
    with pytest.raises(OSError, match="no"):
        staging.commit({"format_version": VERSION}, staging.digests)
    staging.discard()
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert (tmp_path / "checkpoint-1" / "model.json").read_text() == "old"


def test_a_checkpoint_is_removed_under_another_name(tmp_path: Path, monkeypatch):
    folder = commit(tmp_path, 1)
    monkeypatch.setattr(committing.shutil, "rmtree", lambda path, **options: None)
    remove(Checkpoint(folder, 1, run_id="run"))
    assert [parse_hidden(path) for path in tmp_path.iterdir()] == [hidden_name(1, "run", "-removed")]


# What killed runs leave.


def test_names_of_hidden_folders_are_read_back():
    for name in (
        *(Hidden(3, "ab12", 77), Hidden(3, "", 77, "-removed"), Hidden(3, "12345678", 77, "", "87654321")),
        *(Hidden(3, "", 12345678, "-replaced", "00000000"), hidden_name(9, "../../a-b", "-replaced")),
    ):
        assert parse_hidden(Path(str(name))) == name
    for other in (".tmp-checkpoint-3", ".tmp-model", "checkpoint-3", ".tmp-checkpoint-3-a-1-elsewhere"):
        assert parse_hidden(Path(other)) is None
    assert "/" not in str(hidden_name(9, "../../a-b"))


def test_leftovers_of_the_same_run_and_of_dead_processes_are_removed_at_the_next_commit(tmp_path: Path):
    dead, alive, mine, here, there = GONE, os.getppid(), os.getpid(), this_host(), "0123abcd"
    gone = (
        *(Hidden(1, "run", dead), Hidden(2, "run", dead, "-removed"), Hidden(3, "run", mine)),
        *(Hidden(4, "run", dead, "", here), Hidden(5, "run", mine, "", here), Hidden(6, "run", alive, "", there)),
        *(Hidden(7, "other", dead, "", here), Hidden(8, "other", dead, "-removed", here)),
    )
    stay = (
        *(Hidden(10, "run", alive), Hidden(11, "run", alive, "", here)),
        *(Hidden(12, "other", dead), Hidden(13, "other", alive), Hidden(14, "other", alive, "", here)),
        *(Hidden(15, "other", dead, "", there), Hidden(16, "other", mine, "", here)),  # perhaps on another thread
    )
    for name in (*gone, *stay, ".tmp-checkpoint-2", ".tmp-else-3-other-1"):
        (tmp_path / str(name)).mkdir()
    commit(tmp_path, 20)
    assert names_in(tmp_path) == sorted(["checkpoint-20", ".tmp-checkpoint-2", ".tmp-else-3-other-1", *map(str, stay)])


def test_a_checkpoint_under_replacement_on_another_machine_is_restored(tmp_path: Path):
    name = str(Hidden(1, "run", os.getppid(), "-replaced", "0123abcd"))
    commit(tmp_path, 1).rename(tmp_path / name)
    put_back(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-1"]


def test_a_new_run_ignores_a_first_save_that_was_killed(tmp_path: Path):
    child = forked(lambda: (stage(tmp_path, 1, "before"), os.kill(os.getpid(), 9)))
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert [parse_hidden(path).run_id for path in tmp_path.iterdir()] == ["before"]
    saving(tmp_path, 2).train(resume_from_checkpoint="auto")
    assert names_in(tmp_path) == ["checkpoint-1", "checkpoint-2"]


def test_a_checkpoint_under_replacement_gets_its_name_back(tmp_path: Path):
    for step, damaged in ((1, False), (2, True), (3, False)):
        folder = commit(tmp_path, step, model="old")
        folder.rename(tmp_path / str(Hidden(step, "another", GONE, "-replaced")))
        if damaged:
            (tmp_path / str(Hidden(step, "another", GONE, "-replaced")) / "model.json").unlink()
    commit(tmp_path, 3, model="new")
    put_back(tmp_path)
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-3"}
    assert (tmp_path / "checkpoint-3" / "model.json").read_text() == "new"


def test_the_same_run_puts_it_back_rather_than_sweeping_it_away(tmp_path: Path):
    commit(tmp_path, 1).rename(tmp_path / str(Hidden(1, "run", GONE, "-replaced")))
    sweep(tmp_path, "run")
    assert names_in(tmp_path) == ["checkpoint-1"]


# Tensors.

TYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.uint16, torch.uint32, torch.uint64),
]


def test_tensors_are_read_by_safetensors_as_they_were_written(tmp_path: Path):
    tensors = {
        f"{dtype} {shape}": torch.ones(shape).to(dtype) for dtype in TYPES for shape in ((), (0, 2), (3,), (2, 3))
    }
    tensors["a column"] = torch.arange(6.0).reshape(2, 3).T
    with open(tmp_path / "file", "wb") as file, ThreadPoolExecutor(1) as thread:
        hashed = HashedFile(file, thread)
        write_tensors(hashed, tensors, {"said": "ünd"})
        digest = hashed.digest()
    content = (tmp_path / "file").read_bytes()
    assert (digest.size, digest.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    read = load_file(tmp_path / "file")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert read[name].reshape(-1).view(torch.uint8).equal(tensor.contiguous().reshape(-1).view(torch.uint8))


def test_weights_are_written_as_safetensors_writes_them(tmp_path: Path):
    # float8_e8m0fnu is a dtype that only safetensors itself can write.
    for name, types in (("known", TYPES), ("unknown", [*TYPES, torch.float8_e8m0fnu])):
        weights = {f"{dtype}": torch.ones(3, 4).to(dtype) for dtype in types}
        weights["large"] = torch.randn(700, 700)  # several pieces
        save_weights(weights, tmp_path / name)
        save_file(weights, tmp_path / f"{name}.safetensors", {"format": "pt"})
        found, expected = load_file(tmp_path / name / "model.safetensors"), load_file(tmp_path / f"{name}.safetensors")
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert found[key].dtype == tensor.dtype
            assert found[key].view(torch.uint8).equal(tensor.view(torch.uint8))
        assert [path.name for path in (tmp_path / name).iterdir()] == ["model.safetensors"]


def test_weights_that_are_a_map_of_their_file_are_written_over_it(tmp_path: Path):
    save_weights({"weight": torch.arange(2e6)}, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as mapped:
        save_weights({"weight": mapped.get_tensor("weight")}, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["weight"].equal(torch.arange(2e6))


def test_a_type_that_the_format_does_not_have_is_refused_by_name(tmp_path: Path):
    staging = stage(tmp_path, 1)
    with (
        pytest.raises(CheckpointError, match=r"'odd' is a tensor of dtype torch\.complex128, which"),
        staging.open("odd") as file,
    ):
        write_tensors(file, {"odd": torch.ones(1, dtype=torch.complex128)}, {})


# Several processes.


class Ranks:
    """Two processes, of which the other one has done its work, or failed."""

    def __init__(self, other: tuple[Any, str]) -> None:
        self.other = other

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, self.other]


def two(other: tuple[Any, str]) -> Any:
    return SimpleNamespace(ranks=Ranks(other), state=SimpleNamespace(global_step=7), activity=Activity())


def test_a_failure_on_one_rank_is_an_error_on_all_ranks():
    assert on_all_ranks(two(("theirs", "")), lambda: "mine") == ["mine", "theirs"]
    with pytest.raises(CheckpointError, match=r"step 7 is not written: on rank 1, OSError: full"):
        on_all_ranks(two((None, "OSError: full")), lambda: "mine")
    with pytest.raises(ZeroDivisionError):
        on_all_ranks(two((None, "OSError: full")), lambda: 1 / 0)
