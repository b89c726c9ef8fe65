"""Choosing a checkpoint on several ranks: one that is good on all, or an error with rank and damage."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import commit, flip, rewrite
from trainbus.engine.checkpoint.format.hashing import digest_of
from trainbus.engine.checkpoint.read import choosing
from trainbus.engine.checkpoint.read.choosing import Inspector, choose
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.state_files import StatePart
from trainbus.engine.checkpoint.read.verify import Check
from trainbus.engine.distributed.ranks import Ranks
from trainbus.events import ArgumentError, CheckpointError


class Together:
    """Processes that are threads: each gives what it has, and all get what was given."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=120)
        self.given: list[Any] = [None] * count

    def gather(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self.barrier.wait()
        everyone = list(self.given)
        self.barrier.wait()
        return everyone


class Thread(Ranks):
    """One of them."""

    together: Together

    def gather_objects(self, value: Any) -> list[Any]:
        return self.together.gather(self.rank, value)


def on_all(count: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """Do something on each of several processes; return what it gave, or the error it raised."""
    together = Together(count)

    def on_one(rank: int) -> Any:
        ranks = Thread(rank, count, rank)
        object.__setattr__(ranks, "together", together)
        try:
            return work(ranks)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(on_one, range(count)))


def chosen(folders: list[Path], wanted: Any, *, apart: bool = True, partial: bool = False) -> list[Any]:
    """What each process goes on from, with a folder of its own or the first one's."""
    check = Check(optional=("model.json", "rng_state_*"), partial=partial)

    def work(ranks: Ranks) -> Any:
        folder = folders[ranks.rank]
        inspector = Inspector(ranks, check, reads=apart or ranks.rank == 0, separate_disks=apart)
        found = choose(folder, folder / wanted if str(wanted).startswith("checkpoint") else wanted, inspector)
        return None if found is None else found.path

    return on_all(len(folders), work)


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """What two machines wrote of steps 1 to 4 of one run, each on its own disk."""
    folders = [tmp_path / "one", tmp_path / "other"]
    for rank, folder in enumerate(folders):
        for step in range(1, 5):
            checkpoint = commit(folder, step, world_size=2)
            (checkpoint / f"rng_state_{rank}.safetensors").write_text("states")
            files = {path.name: path for path in checkpoint.iterdir() if path.name != "manifest.json"}
            rewrite(checkpoint, files={name: asdict(digest_of(path)) for name, path in files.items()})
    return folders


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit": (lambda disk: flip(disk / "checkpoint-4" / "model.json"), r"model\.json has changed since it was written"),
    "a file": (lambda disk: (disk / "checkpoint-4" / "trainer_state.json").unlink(), r"trainer_state\.json is missing"),
    "all": (lambda disk: shutil.rmtree(disk / "checkpoint-4"), r"(it does not exist|there is no such folder)"),
    "random states": (
        lambda disk: next(disk.glob("checkpoint-4/rng*")).unlink(),
        r"rng_state_\d\.safetensors is missing",
    ),
    "no manifest": (
        lambda disk: (disk / "checkpoint-4" / "manifest.json").write_text(""),
        r"manifest\.json cannot be read",
    ),
    "another step": (
        lambda disk: (shutil.rmtree(disk / "checkpoint-4"), (disk / "checkpoint-2").rename(disk / "checkpoint-4")),
        r"it is of step \d of the run run, and on rank 0 of step \d of the run run",
    ),
    "another run": (
        lambda disk: rewrite(disk / "checkpoint-4", run_id="else"),
        r"it is of step 4 of the run \w+, and on rank 0 of step 4 of the run \w+",
    ),
}


@pytest.mark.parametrize("on", [0, 1])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_on_one_machine_excludes_the_checkpoint_on_all(
    damage: str, on: int, disks: list[Path], caplog: pytest.LogCaptureFixture
):
    does, said = DAMAGES[damage]
    does(disks[on])
    where = rf"on rank {1 if damage.startswith('another') else on} \(.+\), {said}"
    for wanted in (True, "auto"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="trainbus"):
            assert chosen(disks, wanted) == [disk / "checkpoint-3" for disk in disks]
        assert len(caplog.messages) == 2
        for message in caplog.messages:
            assert re.search(rf"\n- checkpoint-4: {where}", message), message
    for disk, error in zip(disks, chosen(disks, "checkpoint-4")):
        assert isinstance(error, CheckpointError)
        assert str(error).startswith(f"{disk / 'checkpoint-4'} cannot be resumed from: on rank ")
        assert re.search(where, str(error)), error
        assert str(error).endswith(f"Resume from {disk / 'checkpoint-3'}, which is good.")


def test_a_checkpoint_good_on_all_machines_loads_without_a_warning(disks: list[Path], caplog: pytest.LogCaptureFixture):
    for wanted in (True, "auto", "checkpoint-4"):
        assert chosen(disks, wanted) == [disk / "checkpoint-4" for disk in disks]
    assert chosen(disks, None) == [None, None]
    assert caplog.messages == []


def test_if_one_machine_has_no_checkpoint_the_run_does_not_start_fresh(disks: list[Path]):
    shutil.rmtree(disks[1])
    for error in chosen(disks, "auto"):
        assert isinstance(error, CheckpointError)
        assert str(error).count(", it does not exist") == 4
    shutil.rmtree(disks[0])
    assert chosen(disks, "auto") == [None, None]


def test_missing_state_must_be_the_same_on_all_ranks(disks: list[Path], monkeypatch: pytest.MonkeyPatch):
    def missing_parts(checkpoint: SavedCheckpoint) -> list[StatePart]:
        return [] if (checkpoint.path / "model.json").is_file() else [StatePart.OPTIMIZER]

    monkeypatch.setattr(SavedCheckpoint, "missing_parts", missing_parts)
    (disks[1] / "checkpoint-4" / "model.json").unlink()
    for error in chosen(disks, "checkpoint-4", partial=True):
        assert "it is without the optimizer, and on rank 0 complete" in str(error)
    (disks[0] / "checkpoint-4" / "model.json").unlink()
    assert chosen(disks, True, partial=True) == [disk / "checkpoint-4" for disk in disks]


def test_a_process_that_comes_to_another_machine_misses_its_random_states(disks: list[Path]):
    for error in chosen(disks[::-1], "checkpoint-4"):
        assert "rng_state_0.safetensors is missing" in str(error)
        assert "rng_state_1.safetensors is missing" in str(error)
    assert chosen(disks[::-1], "checkpoint-4", partial=True) == [disk / "checkpoint-4" for disk in disks[::-1]]


# One folder for all.


def test_in_a_shared_folder_only_the_first_rank_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commit(tmp_path, 1)
    readers: list[str] = []
    really = SavedCheckpoint.problems

    def reads(checkpoint: SavedCheckpoint, *, full: bool = True, **options: Any) -> list[str]:
        if full:
            readers.append(threading.current_thread().name)
        return really(checkpoint, full=full, **options)

    monkeypatch.setattr(SavedCheckpoint, "problems", reads)
    assert chosen([tmp_path] * 3, True, apart=False) == [tmp_path / "checkpoint-1"] * 3
    assert len(readers) == 1
    assert chosen([tmp_path] * 3, "checkpoint-1", apart=False) == [tmp_path / "checkpoint-1"] * 3
    assert len(readers) == 2


def test_a_machine_that_does_not_see_the_folder_is_named_with_the_remedy(disks: list[Path]):
    shutil.rmtree(disks[1])
    for error in chosen(disks, "checkpoint-4", apart=False):
        assert "on rank 1 (" in str(error)
        assert "there is no such folder; if machines share no disk, set `save_on_each_node`" in str(error)


def test_damage_in_a_shared_folder_is_reported_without_a_rank(tmp_path: Path):
    flip(commit(tmp_path, 1) / "model.json")
    for error in chosen([tmp_path] * 2, True, apart=False):
        assert "\n- checkpoint-1: model.json has changed since it was written" in str(error)


def test_a_folder_unreadable_on_one_rank_is_an_error_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: Any) -> Any:
        raise PermissionError("not yours")

    monkeypatch.setattr(choosing, "survey", refuses)
    for error in chosen([tmp_path] * 2, True, apart=False):
        assert isinstance(error, CheckpointError)
        assert "not yours" in str(error)


def test_folders_that_differ_are_refused_by_name():
    choosing._check_same(["/out/a", "/out/a"])
    with pytest.raises(ArgumentError, match=r"is /out/a on rank 0 and /out/b on rank 2, .*`save_on_each_node`"):
        choosing._check_same(["/out/a", "/out/a", "/out/b"])
