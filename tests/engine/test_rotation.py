"""Rotation where it went wrong elsewhere: shared folders, equal times, a clock that was set back, links, readers."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from kill_program import forked
from safetensors.torch import load_file

from support.checkpoints import chosen, commit, names_in, rewrite, saving
from support.data import points
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import Checkpoint, Keep, KeepBest, never
from trainbus.engine.checkpoint.format.manifest import read_manifest
from trainbus.engine.checkpoint.read.listing import list_checkpoints, survey
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write.commit import remove
from trainbus.events import CheckpointError


def steps_in(folder: Path) -> list[int]:
    return [found.step for found in survey(folder)]


def measured(folder: Path, losses: list[float], **args: Any) -> Any:
    """A trainer that evaluates and saves every step, and measures these losses."""
    every_step = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1}
    args = {"max_steps": len(losses), **every_step, **best, **args}
    run, left = regression_trainer(folder, args=args, eval_dataset=points(4)), [*losses]
    run.on("on_evaluate_dataset", lambda metrics: metrics.update(eval_loss=left.pop(0)), id="measured")
    return run


# What handlers know of a checkpoint.


@pytest.mark.parametrize("later", [True, False], ids=["on a thread", "in step"])
def test_each_event_gives_the_facts_of_the_manifest(later: bool, tmp_path: Path):
    manifests: dict[int, Any] = {}
    seen: dict[str, list[Any]] = {}

    def note(event: str, checkpoint: Any) -> None:
        seen.setdefault(event, []).append(checkpoint)
        if checkpoint.path.is_dir():
            manifests.setdefault(checkpoint.step, SavedCheckpoint.open(checkpoint.path).manifest)

    def heard(run: Any) -> Any:
        for event in ("on_commit", "on_delete", "on_load", "on_best_loaded"):
            run.on(event, lambda checkpoint, event=event: note(event, checkpoint), id=event)
        return run

    heard(measured(tmp_path / "run", [3.0, 1.0, 2.0], async_save=later)).train()
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    heard(measured(moved, [3.0, 1.0, 2.0, 4.0], async_save=later)).train(resume_from_checkpoint="auto")
    assert {event: [each.step for each in found] for event, found in seen.items()} == {
        "on_commit": [1, 2, 3, 4],
        "on_delete": [1, 3],
        "on_load": [3],
        "on_best_loaded": [2, 2],
    }
    for record in (each for found in seen.values() for each in found):
        facts = manifests[record.step]
        assert (record.run_id, record.time, record.seconds) == (facts["run_id"], facts["time"], facts["seconds"])
        assert record.metrics == facts["metrics"]
        assert record.run_id
    assert seen["on_best_loaded"][-1].path == moved / "checkpoint-2"


# The best and the last, at each moment.


@pytest.mark.parametrize("later", [True, False], ids=["on a thread", "in step"])
@pytest.mark.parametrize("best", [1, 2, 3, 4, 5])
def test_with_a_limit_of_one_the_best_and_the_newest_are_there_at_each_moment(best: int, later: bool, tmp_path: Path):
    losses = [10.0 - step if step < best else float(step) for step in range(1, 6)]
    losses[best - 1] = 0.5
    run = measured(tmp_path, losses, async_save=later)
    wrong: list[Any] = []

    def look(state: Any) -> None:
        there = steps_in(tmp_path)
        # The one that was just asked for may still be on its way, and so may the removal of those before.
        newest = state.global_step - 1 if later else state.global_step
        if newest > 0 and newest not in there and newest + 1 not in there:
            wrong.append(("newest", state.global_step, there))
        if best < newest and best not in there:
            wrong.append(("best", state.global_step, there))

    run.on("on_step_begin", lambda state: state.global_step and look(state), id="looks")
    run.train()
    assert wrong == []
    assert steps_in(tmp_path) == sorted({best, 5})
    assert same_weights(weights(run.model), load_file(tmp_path / f"checkpoint-{best}" / "model.safetensors"))


# Two runs in one folder.


def test_two_runs_at_once_in_one_folder_leave_each_other_alone(tmp_path: Path):
    """Two processes that write checkpoints of other steps: each keeps its own newest, and removes its own only."""

    def run(first: int) -> None:
        args = {"max_steps": 16, "disable_tqdm": True, "save_strategy": "steps"}
        built = regression_trainer(tmp_path, args=args, callbacks=[Checkpoint(never(), Keep(total=2))])

        def ask(state: Any, control: Any) -> None:
            if state.global_step % 2 == first:  # so that the steps of the two come in between each other
                control.request("save", "its turn")

        built.on("on_step_end", ask)
        built.on("on_step_end", lambda: time.sleep(0.001))
        built.train()

    children = [forked(lambda first=first: run(first)) for first in (0, 1)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    found = list_checkpoints(tmp_path)
    assert [problems(checkpoint.path, full=True) for checkpoint in found] == [[]] * len(found)
    of_run: dict[str, list[int]] = {}
    for checkpoint in found:
        of_run.setdefault(checkpoint.run_id, []).append(checkpoint.step)
    assert sorted(of_run.values()) == [[13, 15], [14, 16]]
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("call", ["iterdir", "rglob"])
def test_a_checkpoint_that_another_run_deletes_during_its_check_is_left_out(call: str, tmp_path: Path, monkeypatch):
    deleted = commit(tmp_path, 1)
    (deleted / "manifest.json").unlink()
    kept = commit(tmp_path, 2)
    real = getattr(Path, call)

    def vanishing(path: Path, *patterns: str) -> Any:
        if path == deleted:
            shutil.rmtree(path)
        return real(path, *patterns)

    monkeypatch.setattr(Path, call, vanishing)
    assert [found.path for found in list_checkpoints(tmp_path)] == [kept]
    assert not deleted.exists()


def test_a_new_run_keeps_its_checkpoints_next_to_a_longer_run(tmp_path: Path):
    """Elsewhere a new run in a used folder deleted its own checkpoints at once, since older ones have later steps."""
    saving(tmp_path, 9, save_steps=3).train()
    old = {found.step: found.run_id for found in survey(tmp_path)}
    assert sorted(old) == [3, 6, 9]
    saving(tmp_path, 4, save_steps=2, save_total_limit=1).train()
    assert steps_in(tmp_path) == [3, 4, 6, 9]
    assert chosen(tmp_path, True) == tmp_path / "checkpoint-4"
    assert {found.step for found in survey(tmp_path) if found.run_id in old.values()} == {3, 6, 9}


# Times that say nothing.


def test_times_of_files_are_of_no_account(tmp_path: Path):
    """All equal, or the other way round, as after copying a folder."""
    for times in ([5.0] * 4, [9.0, 8.0, 7.0, 6.0]):
        folder = tmp_path / str(times[0])
        saving(folder, 4).train()
        for step, at in enumerate(times, 1):
            os.utime(folder / f"checkpoint-{step}", (at, at))
        again = saving(folder, 5, save_total_limit=2)
        again.train(resume_from_checkpoint=True)
        assert steps_in(folder) == [4, 5]
        assert chosen(folder, True) == folder / "checkpoint-5"


def test_a_clock_set_back_deletes_no_new_checkpoint_and_loses_no_step(tmp_path: Path, monkeypatch):
    """In one run, at each step, by an hour."""
    now = [2e9]

    def earlier() -> float:
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr("trainbus.engine.checkpoint.write.snapshot.time.time", earlier)
    run = saving(tmp_path, 5, save_total_limit=2)
    run.train()
    times = {found.step: found.time for found in survey(tmp_path)}
    assert sorted(times) == [4, 5]
    assert times[5] < times[4]
    assert chosen(tmp_path, True) == tmp_path / "checkpoint-5"
    again = saving(tmp_path, 7, seed=1, save_total_limit=2)
    again.train(resume_from_checkpoint=True)
    assert steps_in(tmp_path) == [6, 7]
    monkeypatch.undo()
    unbroken = saving(tmp_path / "unbroken", 7)
    unbroken.train()
    assert same_weights(weights(again.model), weights(unbroken.model))


# Readers, and links.


def test_a_reader_finishes_a_checkpoint_that_is_removed(tmp_path: Path):
    folder = commit(tmp_path, 1, model="a long text" * 10_000)
    with open(folder / "model.json") as reader:
        begun = reader.read(11)
        remove(SavedCheckpoint.open(folder))
        assert begun + reader.read() == "a long text" * 10_000
    assert names_in(tmp_path) == []


def test_a_checkpoint_that_vanishes_is_nobodys_error(tmp_path: Path):
    """Somebody else removes what the run was about to."""
    run = saving(tmp_path, 4, save_total_limit=1, async_save=False)
    run.on(
        "on_save_begin",
        lambda state: state.global_step == 3 and remove(SavedCheckpoint.open(tmp_path / "checkpoint-2")),
    )
    run.train()
    assert steps_in(tmp_path) == [4]


def test_a_link_is_not_followed(tmp_path: Path, caplog):
    """A checkpoint of the run that was moved to another disk, with a link in its place, is not deleted there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    output = tmp_path / "output"
    run = saving(output, 4, save_total_limit=1, async_save=False)

    def move() -> None:
        (output / "checkpoint-1").rename(elsewhere / "checkpoint-1")
        (output / "checkpoint-1").symlink_to(elsewhere / "checkpoint-1")

    run.on("on_step_end", move, once=2)
    run.train()
    assert problems(elsewhere / "checkpoint-1", full=True) == []
    assert 4 in steps_in(output)


@pytest.mark.parametrize("run_id", ["../../elsewhere", "/etc", "..", "a/b", ""])
def test_a_manifest_cannot_send_the_rotation_elsewhere(run_id: str, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "dear.txt").write_text("dear")
    folder = commit(tmp_path / "output" / "runs", 1)
    rewrite(folder, run_id=run_id, step=99)
    assert read_manifest(folder)["run_id"] == run_id
    remove(SavedCheckpoint.open(folder))
    assert names_in(tmp_path / "output" / "runs") == []
    assert (tmp_path / "elsewhere" / "dear.txt").read_text() == "dear"


def test_a_path_outside_of_the_checkpoint_is_refused(tmp_path: Path):
    saving(tmp_path / "run", 1).train()
    (tmp_path / "else").mkdir()
    outside = tmp_path / "run" / "checkpoint-1" / ".." / ".." / "else"
    with pytest.raises(CheckpointError, match="cannot be resumed from"):
        saving(tmp_path / "run", 2).train(resume_from_checkpoint=str(outside))


def test_the_best_of_a_run_that_is_resumed_elsewhere_stays(tmp_path: Path):
    """Its path in the state is that of the folder as it was named before."""
    measured(tmp_path / "before", [3.0, 1.0, 2.0]).train()
    (tmp_path / "before").rename(tmp_path / "after")
    again = measured(tmp_path / "after", [5.0, 6.0], max_steps=5)
    again.train(resume_from_checkpoint=True)
    assert steps_in(tmp_path / "after") == [2, 5]
    assert any(isinstance(callback, KeepBest) for callback in again.callbacks.values())
