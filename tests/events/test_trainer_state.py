"""The facts of a run go through JSON, and are those of transformers under its names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import transformers

import trainbus
from support.trainers import net_trainer
from trainbus.events import TrainerState
from trainbus.events.state import exported_states, flattened


def fields_of(cls: type) -> dict[str, object]:
    return {field.name: field for field in dataclasses.fields(cls)}


def a_state() -> TrainerState:
    state = TrainerState(
        epoch=1.5,
        global_step=30,
        max_steps=60,
        logging_steps=5,
        log_history=[{"loss": 0.1 + 0.2, "step": 5}, {"eval_loss": 1e-30, "step": 10}],
        best_metric=0.0,
        best_global_step=10,
        best_model_checkpoint="out/checkpoint-10",
        trial_params={"lr": 1e-4},
        stateful_callbacks={"EarlyStopping": {"waited": 2}},
        samples_seen=480,
        steps_skipped=1,
    )
    state.seconds = 12.25
    return state


def test_every_field_of_transformers_is_there_under_its_name_with_its_default():
    theirs, ours = vars(transformers.TrainerState()), vars(TrainerState())
    assert theirs.items() <= ours.items()


def test_json_round_trip_keeps_every_value(tmp_path):
    state = a_state()
    state.save_to_json(tmp_path / "trainer_state.json")
    assert TrainerState.load_from_json(tmp_path / "trainer_state.json") == state


def test_every_field_of_transformers_is_saved_in_order_of_its_name_and_ours_apart(tmp_path):
    a_state().save_to_json(tmp_path / "trainer_state.json")
    saved = json.loads((tmp_path / "trainer_state.json").read_text())
    assert list(saved) == sorted(fields_of(transformers.TrainerState))
    assert saved["stateful_callbacks"] == {
        "EarlyStopping": {"waited": 2},
        "trainbus": {"samples_seen": 480, "steps_skipped": 1, "seconds": 12.25},
    }


def test_transformers_loads_saved_models(tmp_path):
    state = a_state()
    state.save_to_json(tmp_path / "trainer_state.json")
    read = vars(transformers.TrainerState.load_from_json(str(tmp_path / "trainer_state.json")))
    assert read.pop("stateful_callbacks").keys() == {"EarlyStopping", "trainbus"}
    assert read.items() <= vars(state).items()


@pytest.mark.parametrize("states", [None, [], "a", {}, {"trainbus": None}, {"another": {"waited": 1}}])
def test_values_without_parts_stay_unchanged(states):
    assert flattened({"global_step": 3, "stateful_callbacks": states})["stateful_callbacks"] == states
    assert flattened({"global_step": 3}) == {"global_step": 3}


def test_additional_state_entries_are_restored():
    values = flattened(a_state().to_file(position={"epoch": 1}, seconds=3.0))
    assert values == {**a_state().to_dict(), "position": {"epoch": 1}, "seconds": 3.0}


def test_state_of_transformers_is_read(tmp_path):
    values = {name: value for name, value in vars(a_state()).items() if name in fields_of(transformers.TrainerState)}
    transformers.TrainerState(**values).save_to_json(str(tmp_path / "trainer_state.json"))
    read = TrainerState.load_from_json(tmp_path / "trainer_state.json")
    assert {name: getattr(read, name) for name in values} == values
    assert (read.samples_seen, read.steps_skipped, read.seconds) == (0, 0, 0.0)


def test_fresh_state_of_transformers_is_read_as_a_fresh_state(tmp_path):
    transformers.TrainerState().save_to_json(str(tmp_path / "trainer_state.json"))
    assert TrainerState.load_from_json(str(tmp_path / "trainer_state.json")) == TrainerState()


def test_unknown_keys_and_nulls_of_another_version_are_left_out():
    read = TrainerState.from_dict({"global_step": 3, "of_the_future": 1, "log_history": None, "eval_steps": None})
    assert read == TrainerState(global_step=3)


def test_dict_is_a_copy():
    state = a_state()
    state.to_dict()["log_history"][0]["loss"] = None
    assert state.log_history[0]["loss"] == 0.1 + 0.2


def test_two_states_share_no_object():
    TrainerState().log_history.append({})
    TrainerState().stateful_callbacks["A"] = {}
    assert TrainerState() == TrainerState(log_history=[], stateful_callbacks={})


def test_states_of_exportable_callbacks_are_those_of_transformers(tmp_path):
    def given(library):
        return [library.EarlyStoppingCallback(3), library.EarlyStoppingCallback(2, early_stopping_threshold=0.1)]

    for callbacks in (lambda library: None, lambda library: given(library)[:1], given):
        theirs = transformers.TrainerState(stateful_callbacks=callbacks(transformers), log_history=None)
        ours = TrainerState(stateful_callbacks=callbacks(trainbus), log_history=None)
        assert (ours.stateful_callbacks, ours.log_history) == (theirs.stateful_callbacks, theirs.log_history)


def test_exported_states_are_for_transformers_only(tmp_path):
    class Odd(trainbus.ExportableState):
        def state(self):
            return {"args": {}, "attributes": {"value": object()}}

    exported = exported_states([Odd(), trainbus.EarlyStoppingCallback(2), object()])
    values = a_state().to_file(exported=exported)
    json.dumps(values)
    assert values["stateful_callbacks"]["Odd"] == {"args": {}, "attributes": {}}
    assert values["stateful_callbacks"]["EarlyStoppingCallback"]["args"]["early_stopping_patience"] == 2
    assert flattened(values) == a_state().to_dict()


@pytest.mark.parametrize(("name", "meant"), [("globl_step", "global_step"), ("max_step", "max_steps")])
def test_a_new_attribute_with_almost_the_name_of_a_field_warns_once(
    name: str, meant: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = net_trainer(tmp_path, logging_steps=1)
    trainer.on("on_step_end", lambda state: setattr(state, name, 1))
    trainer.train()
    assert caplog.text.count(f"did you mean `state.{meant}`?") == 1


def test_other_attributes_of_a_state_do_not_warn() -> None:
    """Programs for transformers store their own values in the state."""
    state = TrainerState(global_step=3)
    state.best_metric_name, state.x, state.seconds, state.log_history = "f1", 1, 2.0, []
    assert state.misspelt() == {}
