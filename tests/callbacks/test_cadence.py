"""Cadences: the triggers that log, evaluate and save share."""

from __future__ import annotations

import time
from typing import Any

import pytest

from support.callbacks import stop_at
from support.data import net_samples
from support.outcomes import steps_of
from support.trainers import net_trainer
from trainbus import Checkpoint, EarlyStopping, Evaluate, Log, at_end, every, never
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.storage import Disk
from trainbus.events import ArgumentError

WORK = [(Log, "on_log_due"), (Evaluate, "on_evaluate_due"), (Checkpoint, "on_save_due")]

each_kind = pytest.mark.parametrize(("kind", "event"), WORK)


@each_kind
def test_is_requested_once_at_a_step(tmp_path, kind, event):
    both = every(2) | every(1, "epoch") | at_end()
    assert steps_of(net_trainer(tmp_path, kind(both), max_steps=8), event) == [2, 4, 6, 8]


@each_kind
def test_at_end_is_due_in_each_run(tmp_path, kind, event):
    built = net_trainer(tmp_path, kind(at_end()))
    assert steps_of(built, event) == [6]
    assert steps_of(built, event) == [6]


@each_kind
def test_at_end_of_a_run_that_is_stopped(tmp_path, kind, event):
    built = net_trainer(tmp_path, kind(at_end()))
    built.on("on_step_end", stop_at(3))
    assert steps_of(built, event) == [3]


@each_kind
@pytest.mark.parametrize("cadence", [every(2), every(1, "epoch")], ids=repr)
def test_at_end_of_a_run_that_an_evaluation_stops(tmp_path, kind, event, cadence):
    """The stop may come after the ends of the last step and epoch were announced; the end is still the end."""
    stopping = EarlyStopping(patience=1, baseline=0.0)  # which no loss beats
    around = [kind(at_end()), stopping]
    if kind is Evaluate:
        around = [Evaluate(at_end(), dataset=net_samples(4), name="other"), stopping]
    else:
        around.append(Evaluate(never()))
    built = net_trainer(tmp_path, *around, max_steps=20)
    built.on("on_step_end", lambda control, state: cadence == every(2) and _at(state, 2, control))
    built.on("on_epoch_end", lambda control, state: cadence != every(2) and _at(state, 4, control))
    steps = steps_of(built, event)
    end = 2 if cadence == every(2) else 4
    assert built.state.global_step == end
    assert steps == [end] * (2 if kind is Evaluate else 1), "for evaluating, the one that stopped the run comes before"


def _at(state, step, control):
    if state.global_step == step:
        control.request("evaluate", "the test wants to know")


@each_kind
def test_at_end_without_early_ends_skips_an_early_stop(tmp_path, kind, event):
    built = net_trainer(tmp_path, kind(at_end(early=False)))
    built.on("on_step_end", stop_at(3))
    assert steps_of(built, event) == []


@each_kind
def test_the_ledger_names_the_trigger(tmp_path, kind, event):
    built = net_trainer(tmp_path, kind(every(4)))
    built.train()
    [asked] = [entry for entry in built.control.ledger.of(kind.flag) if entry.action == "request"]
    assert (asked.step, asked.author, asked.reason) == (4, kind.__name__, "due by every(4)")


@each_kind
def test_a_trigger_may_be_exchanged_on_the_way(tmp_path, kind, event):
    """It is heard from the next epoch on, though the old one would have slept for longer."""
    callback = kind(every(100))
    built = net_trainer(tmp_path, callback, max_steps=12)

    def exchange():
        callback.trigger = every(2)

    built.on("on_step_end", exchange, once=2)
    assert steps_of(built, event) == [6, 8, 10, 12]


def test_only_a_clock_makes_it_local():
    assert not Log(every(2) | at_end()).local
    assert Log(every("10min") | at_end()).local


def test_a_clock_resumes_from_the_checkpoint():
    first, second = Checkpoint(every("10s")), Checkpoint(every("10s"))
    assert first.state_dict() == {}
    first.load_state_dict({"last_step": 7, "last_seconds": 12.0})
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == {"last_step": 7, "last_seconds": 12.0}
    second.load_state_dict({})
    assert second.state_dict() == first.state_dict(), "nothing to know changes nothing"


def test_a_clock_of_a_new_run_starts_at_zero(tmp_path):
    """The seconds of a run begin at zero, so those of the run before must not be what the next waits for."""
    built = net_trainer(tmp_path, Checkpoint(every("0.000001s")), max_steps=3)
    assert steps_of(built, "on_save_due") == [1, 2, 3]
    built.run.state.seconds = 0.0
    for callback in built.callbacks.values():
        if isinstance(callback, Checkpoint):
            callback.load_state_dict({"last_step": 3, "last_seconds": 1e9})
    assert steps_of(built, "on_save_due") == [1, 2, 3]


SLEEP, SHARE = 0.03, 0.3


@pytest.mark.parametrize("where", ["evaluation", "save", "save in the background"])
def test_work_by_cost_takes_its_share_of_the_time_at_most(tmp_path, monkeypatch, where):
    """The work sleeps, so each wait has a shortest length on any machine. The run lasts until the work came twice."""
    trigger, before = every("auto", overhead=SHARE, after=0), Disk.write
    event = "on_evaluate_due" if where == "evaluation" else "on_save_due"

    def slow(*args: Any) -> None:
        time.sleep(SLEEP)
        before(*args)

    monkeypatch.setattr(Disk, "write", slow)
    cadence = Evaluate(trigger) if where == "evaluation" else Checkpoint(trigger, async_save="background" in where)
    built, due = net_trainer(tmp_path, cadence, max_steps=1_000_000), []
    built.on("on_evaluate_begin", lambda: time.sleep(SLEEP))

    def note(state, control):
        due.append((state.global_step, time.perf_counter()))
        if len(due) == 2:
            control.request("training_stop", "the work came twice")

    built.on(event, note)
    built.train()
    (first, began), (second, ended) = due
    assert first == 1 < second
    assert ended - began >= SLEEP / SHARE


def test_a_trigger_by_cost_is_set_when_the_callback_is_built():
    with pytest.raises(ArgumentError, match="Pass it to the callback"):
        Evaluate(every(3)).replace_trigger(every("auto", overhead=0.1))


def test_the_cost_of_the_work_is_in_checkpoints(tmp_path):
    built = net_trainer(tmp_path, Checkpoint(every(2)), Evaluate(every("auto", overhead=0.5, after=0)), max_steps=4)
    built.train()
    saved = SavedCheckpoint.open(tmp_path / "checkpoint-4").callback_states()["Evaluate"]
    assert 0 < saved["last_cost"] < saved["last_seconds"]
    again = Evaluate(every("auto", overhead=1e-9, after=0))
    resumed, steps = net_trainer(tmp_path, again, max_steps=6), []
    resumed.on("on_evaluate_due", lambda state: steps.append(state.global_step))
    resumed.train(resume_from_checkpoint=True)
    assert (resumed.state.global_step, steps) == (6, [])


def test_a_preview_says_that_it_does_not_know_the_cost(tmp_path):
    built = net_trainer(tmp_path, Checkpoint(every("auto", overhead=0.1, after=0) | at_end()), max_steps=4)
    found = built.preview(step_seconds=1.0)
    assert [row["step"] for row in found.rows if row["what"] == "save"] == [1, 4]
    assert any("depends on the measured cost" in warning for warning in found.warnings)
