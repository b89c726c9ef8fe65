"""Failing callbacks in real trainings: the summary, the ledger, the state, and callbacks written as text."""

from __future__ import annotations

import json

import pytest

from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, Progress, every
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
