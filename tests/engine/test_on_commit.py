"""`on_commit`: a checkpoint is complete on disk, and training did not wait for it."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from test_async_save import BROKEN, Boom, Disk, raise_boom, saving_at, wait_until

from support.checkpoints import names_in, saving
from support.outcomes import same_weights, weights
from trainbus import SaveOnException, Stage
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write.background_writer import BackgroundWriter
from trainbus.engine.checkpoint.write.ranks_writer import RanksWriter
from trainbus.events import CheckpointError
from trainbus.events.recording.difference import first_difference
from trainbus.events.recording.files import read
from trainbus.events.trace import record


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def note_commits(run: Any, **options: Any) -> list[tuple[int, int, list[Any], str]]:
    """Note for each event: the completed steps, the step of the checkpoint, its problems, and the thread."""
    seen: list[tuple[int, int, list[Any], str]] = []

    def commit(state: Any, checkpoint: Any) -> None:
        wrong = problems(checkpoint.path, full=True)
        seen.append((state.global_step, checkpoint.step, wrong, threading.current_thread().name))

    run.on("on_commit", commit, **options)
    return seen


def test_a_handler_does_not_stop_the_training(tmp_path: Path, disk: Disk):
    run = saving_at(tmp_path, 2)
    disk.slow = {2}
    seen = note_commits(run)
    writer = run.callbacks["Checkpoint"]._writer
    run.on("on_step_begin", disk.opened.set, once=5)
    run.on("on_step_begin", lambda: wait_until(lambda: writer.done), once=6)
    run.train()
    assert seen == [(6, 2, [], "MainThread")]
    assert disk.threads[0] == "checkpoint_0"


def test_two_saves_in_a_row_keep_their_order(tmp_path: Path, disk: Disk):
    run = saving(tmp_path, 4)
    seen = note_commits(run)
    disk.slow = {1, 2, 3, 4}
    run.on("on_save_due", disk.opened.set, stage=Stage.PREPARE, id="opens")
    run.on("on_step_begin", disk.opened.clear, id="closes")
    run.train()
    assert [event[:2] for event in seen] == [(2, 1), (3, 2), (4, 3), (4, 4)]


@pytest.mark.parametrize("why", ["async_save=False", "a handler of on_save"])
def test_a_save_in_step_announces_it_before_on_save(why: str, tmp_path: Path):
    run = saving(tmp_path, 2, async_save=why != "async_save=False")
    heard: list[tuple[str, int, bool]] = []
    run.on("on_commit", lambda state, checkpoint: heard.append(("commit", state.global_step, checkpoint.path.is_dir())))
    if "on_save" in why:
        run.on("on_save", lambda state, checkpoint: heard.append(("save", state.global_step, True)))
    run.train()
    names = ["commit", "save"] if "on_save" in why else ["commit"]
    assert heard == [(name, step, True) for step in (1, 2) for name in names]


def test_a_failed_write_announces_nothing(tmp_path: Path, disk: Disk, caplog):
    run = saving(tmp_path, 4, on_save_error="warn")
    seen = note_commits(run)
    disk.broken = {2: BROKEN, 4: BROKEN}
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        run.train()
    assert [saved for _, saved, *_ in seen] == [1, 3]
    assert len([text for text in caplog.messages if text.endswith("Training continues.")]) == 2


def test_an_error_of_the_thread_announces_nothing(tmp_path: Path, disk: Disk):
    run = saving_at(tmp_path, 2)
    seen = note_commits(run)
    disk.broken = {2: BROKEN}
    with pytest.raises(CheckpointError):
        run.train()
    assert seen == []


@pytest.mark.parametrize("how", ["the end", "an error", "an error of the handler", "SIGINT"])
def test_a_run_that_ends_during_the_write_announces_it_once(how: str, tmp_path: Path, disk: Disk):
    run = saving_at(tmp_path, 2, steps=4)
    seen = note_commits(run)
    released: list[int] = []
    run.on("on_close", lambda: released.append(len(seen)), stage=Stage.PREPARE, id="releases")
    disk.slow = {2}
    run.on("on_train_end", disk.opened.set, stage=Stage.PREPARE, before="Checkpoint", id="opens")
    run.on("on_exception", disk.opened.set, id="opens too")
    run.on("on_save_due", lambda state: state.global_step > 2 and disk.opened.set(), stage=Stage.PREPARE, id="opens 3")
    if "error" in how:
        run.on("on_step_begin", raise_boom, once=4)
    if "handler" in how:
        run.on("on_commit", raise_boom, id="fails")
    if how == "SIGINT":
        run.on("on_loss", lambda: os.kill(os.getpid(), signal.SIGINT), once=4)
    if how == "the end":
        run.train()
    else:
        with pytest.raises(SystemExit if how == "SIGINT" else Boom):
            run.train()
    assert [saved for _, saved, *_ in seen][:1] == [2]
    assert len({saved for _, saved, *_ in seen}) == len(seen)
    assert released == [len(seen)]  # before the callbacks release their resources
    assert "checkpoint-2" in names_in(tmp_path)


def test_a_checkpoint_of_save_on_exception_is_announced_too(tmp_path: Path, disk: Disk):
    run = saving_at(tmp_path, 2, SaveOnException())
    seen = note_commits(run)
    disk.slow = {2}
    run.on("on_exception", disk.opened.set, id="opens")
    run.on("on_step_begin", raise_boom, once=4)
    with pytest.raises(Boom):
        run.train()
    assert [event[:3] for event in seen] == [(3, 2, []), (3, 3, [])]


def test_retention_deletes_no_checkpoint_before_its_handlers_ran(tmp_path: Path, disk: Disk):
    """The policy keeps one checkpoint. The disk lets the thread finish each write at the next save only."""
    run = saving(tmp_path, 5, save_total_limit=1)
    seen = note_commits(run)
    disk.slow = {1, 2, 3, 4, 5}
    run.on("on_save_due", disk.opened.set, stage=Stage.PREPARE, id="opens")
    run.on("on_step_begin", disk.opened.clear, id="closes")
    run.train()
    assert [event[1:3] for event in seen] == [(step, []) for step in range(1, 6)]
    assert names_in(tmp_path) == ["checkpoint-5"]


def test_an_evaluation_rotates_after_the_handlers_ran(tmp_path: Path, disk: Disk):
    run = saving(tmp_path, 2)
    seen = note_commits(run)
    order: list[str] = []
    run.on("on_commit", lambda checkpoint: order.append(f"commit {checkpoint.step}"), id="notes")
    checkpoint = run.callbacks["Checkpoint"]
    disk.slow = {1}

    def evaluated(run: Any) -> None:
        disk.opened.set()
        checkpoint._rotate_after_evaluation(run)
        order.append("rotated")

    run.on("on_step_begin", evaluated, once=2)
    run.train()
    assert order == ["commit 1", "rotated", "commit 2"]
    assert [saved for _, saved, *_ in seen] == [1, 2]


def test_a_kill_before_the_event_keeps_the_checkpoint_and_does_not_repeat_the_event(tmp_path: Path):
    """A real SIGKILL, in the first handler of `on_commit`."""
    unbroken = saving(tmp_path / "unbroken", 4, save_strategy="no")
    unbroken.train()
    child = os.fork()
    if child == 0:
        try:
            run = saving(tmp_path / "run", 4)
            kill = lambda checkpoint: checkpoint.step == 2 and os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            run.on("on_commit", kill, stage=Stage.PREPARE)
            run.train()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert "checkpoint-2" in names_in(tmp_path / "run")
    resumed = saving(tmp_path / "run", 4, seed=1)
    seen = note_commits(resumed)
    resumed.train(resume_from_checkpoint="auto")
    assert [saved for _, saved, *_ in seen] == [3, 4]
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_runs_with_disks_of_different_speeds_have_equal_traces_and_recordings(tmp_path: Path, disk: Disk):
    traces, recordings, seen = [], [], []
    for name, opens in (("fast", 2), ("slow", 4)):
        run = saving_at(tmp_path / name, 2, record=True)
        disk.slow, disk.opened = {2}, threading.Event()
        run.on("on_step_end", disk.opened.set, once=opens, id="opens")
        writer = run.callbacks["Checkpoint"]._writer
        run.on("on_step_begin", lambda writer=writer: wait_until(lambda: writer.done), once=opens + 2, id="waits")
        seen.append(note_commits(run))
        with record(run.bus) as trace:
            run.train()
        traces.append(trace)
        recordings.append(read(tmp_path / name))
    assert [event[1] for commits in seen for event in commits] == [2, 2]
    assert seen[0][0][0] < seen[1][0][0]
    assert first_difference(*recordings) is None
    assert traces[0].difference(traces[1]) == ""
    assert "on_snapshot" in traces[0].events


def test_a_save_in_step_is_recorded_if_a_handler_exists_and_a_comparison_ignores_it(tmp_path: Path):
    for name in ("without", "with"):
        run = saving(tmp_path / name, 2, async_save=False, record=True)
        if name == "with":
            run.on("on_commit", lambda: None, id="listens")
        with record(run.bus) as trace:
            run.train()
        assert trace.events.count("on_commit") == (2 if name == "with" else 0)
    recorded, other = (read(tmp_path / name) for name in ("with", "without"))
    commits = [each["checkpoint"] for each in recorded.records if each.get("e") == "on_commit"]
    assert commits == [1, 2]
    assert first_difference(recorded, other) is None


@pytest.mark.parametrize("kind", [BackgroundWriter, RanksWriter])
def test_a_copy_of_a_writer_is_idle(kind: type[BackgroundWriter]):
    writer = kind()
    for other in (copy.deepcopy(writer), pickle.loads(pickle.dumps(writer))):
        assert type(other) is kind
        assert not other.busy
