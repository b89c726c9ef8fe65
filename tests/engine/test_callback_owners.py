"""Callback states find their callbacks by class and settings. A mismatch warns or is refused."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import SWA, Callback, every
from trainbus.callbacks.model.ema import EMA
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.events.errors import CheckpointError


@dataclass
class Counter(Callback):
    """Counts steps by a number."""

    by: int = 1

    def __post_init__(self) -> None:
        self.count = 0

    def on_step_end(self) -> None:
        self.count += self.by

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Other(Counter):
    """Another class."""


def run_of(folder: Path, *callbacks: Any, seed: int = 0, **args: Any) -> Any:
    args = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, **args}
    return regression_trainer(folder, Regression(seed=seed), args=args, callbacks=list(callbacks))


def resumed(folder: Path, *callbacks: Any, **args: Any) -> Any:
    run = run_of(folder / "again", *callbacks, seed=3, **args)
    run.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    return run


def test_two_of_one_class_in_another_order_keep_their_states(tmp_path: Path) -> None:
    run_of(tmp_path, Counter(1), Counter(10)).train()
    tens, ones = Counter(10), Counter(1)
    resumed(tmp_path, tens, ones)
    assert (tens.count, ones.count) == (40, 4)


@dataclass
class Fields(Callback):
    """Has its state in fields, beside its setting. One field is a list that changes in place."""

    by: int = 1
    count: int = 0
    steps: list[int] = field(default_factory=list)

    def on_step_end(self, state: Any) -> None:
        self.count += self.by
        self.steps.append(state.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.steps = state["count"], list(state["steps"])


def test_state_in_the_fields_of_a_dataclass_is_no_setting(tmp_path: Path, caplog: Any) -> None:
    run_of(tmp_path, Fields(1), Fields(10)).train()
    tens, ones = Fields(10), Fields(1)
    resumed(tmp_path, tens, ones)
    assert (tens.count, ones.count) == (40, 4)
    assert tens.steps == [1, 2, 3, 4]
    assert "other settings" not in caplog.text
    again = Fields(10)
    run = run_of(tmp_path / "once more", again)
    run.train(resume_from_checkpoint=str(tmp_path / "again" / "checkpoint-4"))
    assert again.count == 40, "a resumed run saves the settings too"
    assert "other settings" not in caplog.text


def test_the_state_of_a_removed_callback_goes_to_no_other_callback(tmp_path: Path) -> None:
    run_of(tmp_path, Counter(1), Counter(10)).train()
    tens = Counter(10)
    resumed(tmp_path, tens)
    assert tens.count == 40


def test_changed_settings_are_warned_of(tmp_path: Path, caplog: Any) -> None:
    run_of(tmp_path, Counter(1)).train()
    changed = Counter(5)
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        resumed(tmp_path, changed)
    assert changed.count == 2 + 10
    assert "Counter resumes with other settings: by was 1 and is 5." in caplog.text


def test_the_state_of_another_class_is_not_restored_and_warns(tmp_path: Path, caplog: Any) -> None:
    first, second = Counter(1), Other(1)
    first.id = second.id = "mine"
    run_of(tmp_path, first).train()
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        resumed(tmp_path, second)
    assert second.count == 2
    assert "The state of mine is not restored: it is of the class Counter, and mine is a Other now." in caplog.text


class Plain(Callback):
    """Counts steps by a number; not a dataclass."""

    def __init__(self, by: int, name: str = "by") -> None:
        setattr(self, name, by)
        self.count = 0

    def on_step_end(self) -> None:
        self.count += next(iter(vars(self).values()))

    state_dict = Counter.state_dict
    load_state_dict = Counter.load_state_dict


class Renamed(Plain):
    """Keeps its number under another name than the argument."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "every")


class Hidden(Plain):
    """Keeps its number in an attribute that is not public."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "_number")


@pytest.mark.parametrize("kind", [Plain, Renamed])
def test_callbacks_that_are_no_dataclass_keep_their_states_in_another_order(
    kind: Any, tmp_path: Path, caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        run_of(tmp_path, kind(1), kind(10)).train()
        tens, ones = kind(10), kind(1)
        resumed(tmp_path, tens, ones)
    assert (tens.count, ones.count) == (40, 4)
    assert "equal settings" not in caplog.text
    assert "other settings" not in caplog.text


def test_states_that_cannot_be_told_apart_are_matched_by_position(tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        run_of(tmp_path, Hidden(1), Hidden(10)).train()
        first, second = Hidden(1), Hidden(10)
        resumed(tmp_path, first, second)
    assert (first.count, second.count) == (4, 40)
    assert "The states of Hidden and Hidden-2 are matched by their position" in caplog.text


def test_resume_warns_of_an_earlier_state_version_and_of_a_new_average(
    tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    run_of(tmp_path, Counter(1)).train()
    monkeypatch.setattr(Counter, "state_version", 2)
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        resumed(tmp_path, Counter(1), EMA(0.5))
    assert "The state of Counter has version 1, and this Counter writes version 2." in caplog.text
    assert "EMA has no state in the checkpoint. It starts at the resumed step." in caplog.text


def test_the_refusal_of_averaged_weights_names_the_reason(tmp_path: Path) -> None:
    class Mine(EMA):
        """Another class."""

    run_of(tmp_path, EMA(decay=0.5)).train()
    with pytest.raises(CheckpointError, match=r"`restore_callback_states_from_checkpoint` is off.*Set it to True"):
        resumed(tmp_path, EMA(decay=0.5), restore_callback_states_from_checkpoint=False)
    with pytest.raises(CheckpointError, match=r"Mine is another class and does not restore those. Use EMA\(decay=0.5"):
        resumed(tmp_path, Mine(decay=0.5))


def test_the_state_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Counter, "state_version", 2)
    run_of(tmp_path, Counter(1)).train()
    monkeypatch.setattr(Counter, "state_version", 1)
    with pytest.raises(CheckpointError, match="The state of Counter has version 2, and this Counter reads versions up"):
        resumed(tmp_path, Counter(1))


@pytest.mark.parametrize("attached", [True, False])
def test_averaged_weights_are_not_trained_on_unnoticed(attached: bool, tmp_path: Path) -> None:
    run_of(tmp_path, EMA(decay=0.5)).train()
    callbacks = (EMA(decay=0.5),) if attached else ()
    args = {"restore_callback_states_from_checkpoint": not attached}
    with pytest.raises(CheckpointError, match=r"has the weights of EMA, not the trained.*EMA\(decay=0.5, every=1\)"):
        resumed(tmp_path, *callbacks, **args)
    resumed(tmp_path, *callbacks, **args, resume_partial=True)


def test_an_average_resumes_with_other_settings(tmp_path: Path, caplog: Any) -> None:
    run_of(tmp_path, EMA(decay=0.5)).train()
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        resumed(tmp_path, EMA(decay=0.9))
    assert "EMA resumes with other settings: decay was 0.5 and is 0.9." in caplog.text
    whole = run_of(tmp_path / "whole", EMA(decay=0.5))
    whole.train()
    again = resumed(tmp_path, EMA(decay=0.5))
    assert same_weights(weights(again.model), weights(whole.model))


def test_carried_states_keep_their_owners(tmp_path: Path) -> None:
    run_of(tmp_path, Counter(7)).train()
    resumed(tmp_path, save_steps=3)
    _, owners = SavedCheckpoint.open(tmp_path / "again" / "checkpoint-3").callbacks_and_owners()
    assert (owners["Counter"]["class"], owners["Counter"]["settings"]) == ("Counter", {"by": 7})


@pytest.mark.parametrize("between", [[], [SWA(0.0, every(1))]], ids=["nothing", "another average"])
def test_weights_of_a_dropped_average_do_not_return(tmp_path: Path, between: list[Any], caplog: Any) -> None:
    """A session without the average trains on. A later session with the average continues from these weights."""
    run_of(tmp_path, EMA(decay=0.5)).train()
    resumed(tmp_path, *between, save_steps=3, resume_partial=True)
    assert "weights of callbacks that are not attached: EMA." in caplog.text
    checkpoint = tmp_path / "again" / "checkpoint-3"
    states, owners = SavedCheckpoint.open(checkpoint).callbacks_and_owners()
    assert "EMA" not in {*states, *owners}
    expected = states["SWA"]["trained"] if between else load_file(checkpoint / "model.safetensors")
    last = run_of(tmp_path / "last", *(between or [EMA(decay=0.5)]))
    begins: list[Any] = []
    last.on("on_step_begin", lambda model: begins.append(weights(model)), once=4)
    last.train(resume_from_checkpoint=str(checkpoint))
    assert same_weights(begins[0], expected)


def test_a_new_run_says_nothing_about_a_checkpoint(tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        regression_trainer(tmp_path, args={"max_steps": 2}, callbacks=[EMA(0.5), Counter()]).train()
    assert "checkpoint" not in caplog.text


@pytest.mark.parametrize("event", ["on_load", "on_train_begin", "on_epoch_begin"])
def test_a_callback_that_is_attached_after_the_resume_receives_its_state(event: str, tmp_path: Path) -> None:
    run_of(tmp_path, Counter(1), Counter(10)).train()
    ones, run = Counter(1), run_of(tmp_path / "again", Counter(10), seed=3)
    run.on(event, lambda: run.add_callback(ones), once=1)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert ones.count == 4
    assert not run.resume_report.orphaned
    states = SavedCheckpoint.open(tmp_path / "again" / "checkpoint-4").callbacks_and_owners()[0]
    assert {one: states[one] for one in states if "Counter" in one} == {
        "Counter": {"count": 40},
        "Counter-2": {"count": 4},
    }


def test_a_callback_that_is_attached_in_a_fresh_training_receives_no_state(tmp_path: Path) -> None:
    run_of(tmp_path, Counter(1)).train()
    run = run_of(tmp_path / "again")
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    fresh = Counter(1)
    run.on("on_setup", lambda: run.add_callback(fresh), once=1)
    run.train()
    assert fresh.count == 4


def test_checkpoints_keep_the_state_of_a_removed_callback_whose_id_another_one_has(tmp_path: Path, caplog: Any) -> None:
    run_of(tmp_path, Counter(1), Counter(10)).train()
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        resumed(tmp_path, Counter(10))
    assert "is not restored" not in caplog.text
    ones, run = Counter(1), run_of(tmp_path / "third", Counter(10), seed=3, max_steps=6)
    run.on("on_train_begin", lambda: run.add_callback(ones))
    run.train(resume_from_checkpoint=str(tmp_path / "again" / "checkpoint-4"))
    assert ones.count == 2 + 2
