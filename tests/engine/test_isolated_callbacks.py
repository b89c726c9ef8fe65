"""Failing callbacks in real trainings: the summary, the ledger, the state, and callbacks written as text."""

from __future__ import annotations

import json
import time

import pytest

from support.trainers import net_trainer
from trainbus import EMA, Callback, Checkpoint, Progress, every
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.events import ArgumentError
from trainbus.events.policies import quarantine
from trainbus.testing.tiny import same_weights, weights


class Fails(Callback):
    """Fails at some steps."""

    def __init__(self, steps: tuple[int, ...] = (2, 3)) -> None:
        self.steps, self.heard, self.closed = steps, [], 0

    def on_step_end(self, state, control) -> None:
        self.heard.append(state.global_step)
        control.request("training_stop", "half a decision")
        if state.global_step in self.steps:
            raise ValueError(f"step {state.global_step} is odd")
        control.withdraw("training_stop")

    def on_close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def quarantined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quarantined")
    callback = Fails()
    callback.on_error = quarantine(after=2)
    trainer = net_trainer(folder, callback, Progress(bar=False), Checkpoint(every(6)))
    trainer.train()
    return folder, callback, trainer


def test_the_run_ends_normally_without_the_callback(quarantined, tmp_path):
    _, callback, trainer = quarantined
    assert trainer.state.global_step == 6
    assert (callback.heard, callback.closed) == ([1, 2, 3], 1)
    plain = net_trainer(tmp_path)
    plain.train()
    assert same_weights(weights(trainer.model), weights(plain.model))


def test_the_trainer_and_the_checkpoint_say_what_failed(quarantined):
    folder, _, trainer = quarantined
    record = trainer.failures["Fails"]
    assert (record.count, record.steps, record.quarantined) == (2, [2, 3], 3)
    assert "ValueError: step 2 is odd" in record.traceback
    assert list(trainer.failures) == ["Fails"]
    assert "quarantine" in json.dumps((folder / "checkpoint-6" / "trainer_state.json").read_text())


class Counts(Callback):
    """Counts steps, and fails at one of them. Its state cannot be read after a failure if `unreadable` is True."""

    def __init__(self, fails_at: int = 0, unreadable: bool = False, on_error: str = quarantine(after=1)) -> None:
        self.seen: list[int] = []
        self.failed, self.on_error = False, on_error
        self._at, self._unreadable = fails_at, unreadable

    def on_step_end(self, state) -> None:
        self.seen.append(state.global_step)
        if state.global_step == self._at:
            self.failed = True
            raise ValueError("as planned")

    def state_dict(self) -> dict:
        if self.failed and self._unreadable:
            raise RuntimeError("the state is broken")
        return {"seen": self.seen}

    def load_state_dict(self, state) -> None:
        self.seen = list(state["seen"])


class Exports:
    """A callback in the style of transformers, with `ExportableState`."""

    def __init__(self, fails_at: int = 0) -> None:
        self.seen: list[int] = []
        self._at, self.on_error = fails_at, quarantine(after=1)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.seen = [*self.seen, state.global_step]
        if state.global_step == self._at:
            raise ValueError("as planned")

    def state(self) -> dict:
        return {"args": {}, "attributes": {"seen": self.seen}}

    @classmethod
    def from_state(cls, state: dict):
        raise NotImplementedError


class Slow(Counts):
    """Is slower than its budget allows."""

    budget, over_budget = "1%", "quarantine"

    def on_step_end(self, state) -> None:
        super().on_step_end(state)
        time.sleep(0.01)


def saved_states(folder, step):
    return SavedCheckpoint.open(folder / f"checkpoint-{step}").callbacks_and_owners()


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (lambda: Counts(3), [1, 2, 3]),
        (lambda: Counts(3, unreadable=True), [1, 2]),  # the state of the checkpoint of step 2
        (lambda: Exports(3), [1, 2, 3]),
        (lambda: Counts(3, on_error="retry(1, then='quarantine')"), [1, 2, 3, 3]),
    ],
    ids=["its state", "the last saved state", "ExportableState", "after a retry"],
)
def test_the_state_of_a_quarantined_callback_stays_for_a_resume(tmp_path, kind, kept):
    leaving = kind()
    name = type(leaving).__name__
    net_trainer(tmp_path, leaving, Checkpoint(every(2))).train()
    leaving.seen.append(99)  # the state is a copy
    for step in (4, 6):
        states, owners = saved_states(tmp_path, step)
        assert states[name].get("attributes", states[name])["seen"] == kept
        assert owners[name]["class"] == name
    without = net_trainer(tmp_path, Checkpoint(every(2)), max_steps=8)
    without.train(resume_from_checkpoint=True)
    assert name in saved_states(tmp_path, 8)[0]
    back = type(leaving)()
    resumed = net_trainer(tmp_path, back, Checkpoint(every(2)), max_steps=10)
    resumed.train(resume_from_checkpoint=True)
    assert back.seen == [*kept, 9, 10]
    assert resumed.resume_report.restored.count(name) == 1


def test_the_state_of_a_callback_over_its_budget_stays(tmp_path):
    slow = Slow()
    net_trainer(tmp_path, slow, Checkpoint(every(40)), max_steps=40).train()
    assert 0 < len(slow.seen) < 40
    assert saved_states(tmp_path, 40)[0]["Slow"]["seen"] == slow.seen


def test_the_restored_state_stays_if_the_state_cannot_be_read(tmp_path, caplog):
    net_trainer(tmp_path, Counts(), Checkpoint(every(2)), max_steps=2).train()
    net_trainer(tmp_path, Counts(3, unreadable=True), Checkpoint(every(4))).train(resume_from_checkpoint=True)
    assert saved_states(tmp_path, 4)[0]["Counts"]["seen"] == [1, 2]
    assert (
        "The state of Counts cannot be read: RuntimeError: the state is broken. Later checkpoints keep" in caplog.text
    )


def test_a_state_that_was_never_read_is_named(tmp_path, caplog):
    net_trainer(tmp_path, Counts(1, unreadable=True), Checkpoint(every(2)), max_steps=2).train()
    assert "Counts" not in saved_states(tmp_path, 2)[0]
    assert "Later checkpoints have no state of it." in caplog.text


def test_a_new_training_has_no_state_of_an_earlier_quarantine(tmp_path):
    trainer = net_trainer(tmp_path, Counts(1), Checkpoint(every(2)), max_steps=2)
    trainer.train()
    trainer.train()
    assert "Counts" not in saved_states(tmp_path, 2)[0]


class FailingAverage(EMA):
    on_error = quarantine(after=1)

    def on_step_end(self, state) -> None:
        if state.global_step == 3:
            raise ValueError("as planned")


@pytest.mark.parametrize("attached", [True, False])
def test_a_run_without_its_quarantined_average_resumes_from_the_trained_weights(tmp_path, attached):
    """The model files have the trained weights, because the average no longer replaces them."""
    trainer = net_trainer(tmp_path, FailingAverage(0.5), Checkpoint(every(4)), max_steps=4)
    trainer.train()
    assert trainer.failures["FailingAverage"].quarantined == 3
    trained = weights(trainer.model)
    callbacks = [FailingAverage(0.5)] if attached else []
    resumed = net_trainer(tmp_path, *callbacks, Checkpoint(every(6)), max_steps=6)
    begins = []
    resumed.on("on_step_begin", lambda model: begins.append(weights(model)), once=5)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(begins[0], trained)


def test_a_second_training_begins_without_failures(tmp_path):
    callback = Fails()
    callback.on_error = quarantine(after=2)
    trainer = net_trainer(tmp_path, callback, Progress(bar=False))
    trainer.train()
    assert list(trainer.failures) == ["Fails"]
    trainer.train()
    assert trainer.failures == {}


def test_the_closing_lines_name_the_callback_the_steps_and_the_first_traceback(tmp_path, capsys, caplog):
    callback = Fails()
    callback.on_error = "warn"
    net_trainer(tmp_path, callback, Progress(bar=False)).train()
    said = capsys.readouterr().out.partition("Training stopped at step 6")[2]
    assert "Callback Fails: failed 2 times, after steps 2, 3, in on_step_end: ValueError: step 2 is odd" in said
    assert 'raise ValueError(f"step {state.global_step} is odd")' in said


def test_a_run_without_failures_says_nothing_of_them(tmp_path, capsys):
    trainer = net_trainer(tmp_path, Fails(()), Progress(bar=False))
    trainer.train()
    assert "Callback" not in capsys.readouterr().out
    assert trainer.failures == {}


def test_policies_and_budgets_are_options_of_callbacks_as_text(tmp_path):
    text = "csv(on_error='quarantine(after=2)', budget='5%', over_budget='thin')"
    trainer = net_trainer(tmp_path, callbacks=[text])
    csv = next(each for each in trainer.callbacks.values() if type(each).__name__ == "Csv")
    assert (csv.on_error, csv.budget, csv.over_budget) == ("quarantine(after=2)", "5%", "thin")
    [again] = [each for each in trainer.callbacks_as_config() if each.startswith("csv")]
    assert "on_error='quarantine(after=2)'" in again
    assert "budget='5%'" in again
    assert "over_budget='thin'" in again


def test_an_unreadable_option_is_refused_before_the_run(tmp_path):
    with pytest.raises((ArgumentError, TypeError), match="on_error is 'retry\\(0\\)'"):
        net_trainer(tmp_path, callbacks=["csv(on_error='retry(0)')"])
