"""Checkpoints in a remote store: copied, rotated, fetched, and never used if they are incomplete or damaged."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

fsspec = pytest.importorskip("fsspec")

from support.callbacks import stop_at  # noqa: E402
from support.outcomes import same_weights, weights  # noqa: E402
from support.trainers import net_trainer  # noqa: E402
from trainbus import Checkpoint, Keep, RemoteStore, every  # noqa: E402
from trainbus.events.errors import ArgumentError, CheckpointError  # noqa: E402
from trainbus.integrations.remote import fetch_newest, upload  # noqa: E402

MEMORY = "memory://run"


@pytest.fixture(autouse=True)
def an_empty_store() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def names(url: str) -> set[str]:
    system, path = fsspec.core.url_to_fs(url)
    return {entry.rpartition("/")[2] for entry in system.ls(path, detail=False)} if system.exists(path) else set()


def broken(folder: Path, url: str, keep: Keep | None = None) -> Any:
    trainer = net_trainer(folder, RemoteStore(url), Checkpoint(every(1), keep=keep or Keep()), max_steps=6)
    trainer.on("on_step_end", stop_at(4))
    trainer.train()
    return trainer


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_a_run_resumes_from_the_store_on_another_machine(tmp_path: Path, protocol: str) -> None:
    url = MEMORY if protocol == "memory" else f"file://{tmp_path / 'store'}"
    unbroken = net_trainer(tmp_path / "unbroken", max_steps=6)
    unbroken.train()
    broken(tmp_path / "first", url)
    assert names(url) == {f"checkpoint-{step}" for step in (1, 2, 3, 4)}
    shutil.rmtree(tmp_path / "first")
    resumed = net_trainer(tmp_path / "second", RemoteStore(url), max_steps=6)
    steps: list[int] = []
    resumed.on("on_step_end", lambda state: steps.append(state.global_step))
    resumed.train(resume_from_checkpoint="auto")
    assert steps == [5, 6]
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_the_store_keeps_what_the_retention_policy_keeps(tmp_path: Path) -> None:
    broken(tmp_path, MEMORY, Keep(last=2))
    assert names(MEMORY) == {"checkpoint-3", "checkpoint-4"}


def moved(tmp_path: Path, keep: Keep, stop: int = 6, steps: int = 8, url: str = MEMORY) -> None:
    """Save every second step. After step `stop`, delete the output folder, as on a new machine, and resume."""
    first = net_trainer(tmp_path, RemoteStore(url), Checkpoint(every(2), keep=keep), max_steps=steps)
    first.on("on_step_end", stop_at(stop))
    first.train()
    shutil.rmtree(tmp_path)
    resumed = net_trainer(tmp_path, RemoteStore(url), Checkpoint(every(2), keep=keep), max_steps=steps)
    resumed.train(resume_from_checkpoint="auto")
    assert resumed.state.global_step == steps


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        (Keep(), {2, 4, 6, 8, 10}),
        (Keep(last=1), {10}),
        (Keep(last=3), {6, 8, 10}),
        (Keep(last=1, multiples=4), {4, 8, 10}),
        (Keep(total=4), {4, 6, 8, 10}),
    ],
)
def test_a_checkpoint_that_only_the_new_machine_lacks_stays_if_the_policy_keeps_it(
    tmp_path: Path, keep: Keep, steps: set[int]
) -> None:
    moved(tmp_path / "run", keep, steps=10)
    assert names(MEMORY) == {f"checkpoint-{step}" for step in steps}


def test_a_checkpoint_that_a_user_deletes_from_the_disk_stays_in_the_store(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, RemoteStore(MEMORY), Checkpoint(every(1), keep=Keep(last=3)), max_steps=4)
    trainer.on("on_save_begin", lambda: shutil.rmtree(tmp_path / "checkpoint-2"), once=3)
    trainer.train()
    assert names(MEMORY) == {f"checkpoint-{step}" for step in (1, 2, 3, 4)}


def test_a_step_that_is_saved_again_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, MEMORY)
    sent: list[str] = []
    cls = fsspec.implementations.memory.MemoryFileSystem
    monkeypatch.setattr(
        cls, "put_file", lambda store, local, *rest, real=cls.put_file: sent.append(local) or real(store, local, *rest)
    )
    local = tmp_path / "checkpoint-4"
    upload(fsspec.filesystem("memory"), PurePosixPath("/run"), local)
    assert sorted(map(Path, sent)) == sorted(path for path in local.rglob("*") if path.is_file())
    assert names(MEMORY) == {f"checkpoint-{step}" for step in (1, 2, 3, 4)}

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(cls, "cp_file", refuse)
    upload(fsspec.filesystem("memory"), PurePosixPath("/run"), local)
    fetch_newest(fsspec.filesystem("memory"), PurePosixPath("/run"), tmp_path / "fetched")
    assert [path.name for path in (tmp_path / "fetched").iterdir()] == ["checkpoint-4"]


def test_a_push_reads_only_the_manifests_of_deleted_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    cls = fsspec.implementations.memory.MemoryFileSystem
    monkeypatch.setattr(cls, "cat_file", lambda store, path, real=cls.cat_file: read.append(path) or real(store, path))
    broken(tmp_path / "all", MEMORY)
    assert read == [], "all four are on the local disk"
    broken(tmp_path / "two", "memory://other", Keep(last=2))
    assert read == [f"/other/checkpoint-{step}/manifest.json" for step in (1, 2)]
    read.clear()
    moved(tmp_path / "moved", Keep(multiples=2), stop=4, steps=12, url="memory://moved")
    fetched = [f"/moved/checkpoint-{step}/manifest.json" for step in (2, 4)]
    assert read == [*fetched, "/moved/checkpoint-2/manifest.json"], "one reading serves all later pushes"


def test_checkpoints_of_another_run_stay_in_the_store(tmp_path: Path) -> None:
    broken(tmp_path / "first", MEMORY)
    other = net_trainer(tmp_path / "second", RemoteStore(MEMORY, fetch=False), Checkpoint(every(6), keep=Keep(last=1)))
    other.train()
    assert names(MEMORY) == {f"checkpoint-{step}" for step in (1, 2, 3, 4, 6)}


def test_an_incomplete_copy_is_not_used(tmp_path: Path, an_empty_store: Any) -> None:
    broken(tmp_path / "first", MEMORY)
    an_empty_store.rm("/run/checkpoint-4/manifest.json")
    net_trainer(tmp_path / "second", RemoteStore(MEMORY))
    assert {path.name for path in (tmp_path / "second").iterdir()} == {"checkpoint-3"}


def test_a_damaged_copy_is_named(tmp_path: Path, an_empty_store: Any, caplog: pytest.LogCaptureFixture) -> None:
    broken(tmp_path / "first", MEMORY)
    data = an_empty_store.cat_file("/run/checkpoint-4/model.safetensors")
    an_empty_store.pipe_file("/run/checkpoint-4/model.safetensors", data[:-1] + bytes([data[-1] ^ 1]))
    net_trainer(tmp_path / "second", RemoteStore(MEMORY))
    assert "The remote checkpoint /run/checkpoint-4 is damaged" in caplog.text
    with pytest.raises(CheckpointError, match="is damaged"):
        net_trainer(tmp_path / "third", RemoteStore(MEMORY, on_store_error="raise"))
    assert not list((tmp_path / "third").glob("checkpoint-*"))


def test_an_older_copy_is_fetched_if_the_newest_is_damaged(tmp_path: Path, an_empty_store: Any) -> None:
    broken(tmp_path / "first", MEMORY)
    an_empty_store.rm("/run/checkpoint-4/model.safetensors")
    net_trainer(tmp_path / "second", RemoteStore(MEMORY))
    assert {path.name for path in (tmp_path / "second").iterdir()} == {"checkpoint-3"}


@pytest.mark.parametrize("leftover", [False, True])
def test_a_step_that_is_copied_again_has_a_complete_copy_after_a_kill_at_any_call(
    tmp_path: Path, an_empty_store: Any, monkeypatch: pytest.MonkeyPatch, leftover: bool
) -> None:
    broken(tmp_path / "first", MEMORY)
    store, folder = an_empty_store, PurePosixPath("/run")
    cls, calls = type(store), 0

    class KilledError(Exception):
        """A kill of the process at a call of the store."""

    def counted(name: str) -> Any:
        real = getattr(cls, name)

        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise KilledError
            return real(*args, **options)

        return call

    # The memory store deletes a folder with `rm_file` for each file.
    for name in ("put_file", "cp_file", "rm_file", "makedirs", "rmdir"):
        monkeypatch.setattr(cls, name, counted(name))
    killed = 0
    while True:
        calls = killed
        try:
            upload(store, folder, tmp_path / "first" / "checkpoint-4")
            break
        except KilledError:
            killed += 1
        calls = 10**9
        fetched = tmp_path / f"fetched-{killed}"
        fetch_newest(store, folder, fetched)
        assert [path.name for path in fetched.iterdir()] == ["checkpoint-4"]
        if not leftover:  # else the next copy begins with what this one left
            upload(store, folder, tmp_path / "first" / "checkpoint-4")
    calls = 10**9
    assert killed > 20
    assert names(MEMORY) == {f"checkpoint-{step}" for step in (1, 2, 3, 4)}


def test_a_deletion_begins_with_the_manifest(
    tmp_path: Path, an_empty_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    cls = type(an_empty_store)
    monkeypatch.setattr(cls, "rm_file", lambda store, path, real=cls.rm_file: deleted.append(path) or real(store, path))
    broken(tmp_path, MEMORY, Keep(last=3))
    assert deleted[0] == "/run/checkpoint-1/manifest.json"


def test_a_newer_local_checkpoint_stays(tmp_path: Path) -> None:
    broken(tmp_path / "run", MEMORY)
    before = (tmp_path / "run" / "checkpoint-4" / "manifest.json").stat().st_ino
    net_trainer(tmp_path / "run", RemoteStore(MEMORY))
    assert (tmp_path / "run" / "checkpoint-4" / "manifest.json").stat().st_ino == before


def test_a_store_that_fails_does_not_end_the_run_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the bucket is gone")

    trainer = net_trainer(tmp_path / "warn", RemoteStore(MEMORY), Checkpoint(every(2)), max_steps=4)
    strict = net_trainer(tmp_path / "raise", RemoteStore(MEMORY, on_store_error="raise"), Checkpoint(every(2)))
    monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "put_file", fail)
    trainer.train()
    assert trainer.state.global_step == 4
    assert "cannot be written: OSError: the bucket is gone. Training continues." in caplog.text
    with pytest.raises(CheckpointError, match="the bucket is gone"):
        strict.train()


def test_a_copy_starts_when_the_thread_has_written_and_training_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainbus.engine.checkpoint.write.commit import Staging

    opened, threads = threading.Event(), []
    really = Staging.flush

    def flush(staging: Staging) -> None:
        threads.append(threading.current_thread().name)
        assert opened.wait(30)
        really(staging)

    monkeypatch.setattr(Staging, "flush", flush)
    trainer = net_trainer(tmp_path, RemoteStore(MEMORY), Checkpoint(every(2)), max_steps=3)
    trainer.on("on_step_end", opened.set, once=3)
    trainer.train()
    assert threads == ["checkpoint_0"]
    assert names(MEMORY) == {"checkpoint-2"}


def test_a_path_without_a_protocol_is_refused() -> None:
    with pytest.raises(ArgumentError, match="write a protocol, such as s3://bucket/run"):
        RemoteStore("/data/run")
    with pytest.raises(ArgumentError, match="unknown://"):
        RemoteStore("unknown://bucket")._open()
