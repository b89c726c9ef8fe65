"""Callbacks under the names of transformers, and callbacks of transformers itself."""

from __future__ import annotations

import contextlib
import io

import pytest

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import logged, saved_steps, steps_of
from support.trainers import hushed, net_trainer
from trainbus import (
    Callback,
    Checkpoint,
    DefaultFlowCallback,
    EarlyStoppingCallback,
    Evaluate,
    Log,
    PrinterCallback,
    Progress,
    ProgressCallback,
    StopAtMaxSteps,
    TrainerCallback,
    every,
    never,
)
from trainbus.events import record

STEPS = {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4}
EPOCHS = {"logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch"}
MORE = {"logging_steps": 4, "logging_first_step": True, "eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3}


def course(built):
    """Train, and return what happened when, in words."""
    with record(built.bus) as trace:
        built.train()
    return str(trace)


@pytest.mark.parametrize("arguments", [STEPS, EPOCHS, MORE], ids=["steps", "epochs", "more"])
@pytest.mark.parametrize("max_steps", [6, 8])
def test_the_flow_in_one_callback_is_that_of_the_four(tmp_path, arguments, max_steps):
    courses = []
    for listed in ([], [DefaultFlowCallback()], [DefaultFlowCallback]):
        built = net_trainer(tmp_path, *listed, **arguments, max_steps=max_steps)
        courses.append((course(built), logged(built, "loss"), saved_steps(tmp_path)))
    assert courses[1] == courses[0]
    assert courses[2] == courses[0]


def test_default_flow_callback_alone_decides_when_to_act(tmp_path):
    built = net_trainer(tmp_path, DefaultFlowCallback(), **STEPS)
    assert "StopAtMaxSteps" not in built.callbacks
    assert {built.callbacks[name].trigger for name in ("Log", "Evaluate", "Checkpoint")} == {never()}
    built.train()
    assert built.control.why("training_stop") == ("stopped at step 6 by DefaultFlowCallback: all 6 steps are done")


class Sparing(DefaultFlowCallback):
    """Written for transformers: the control that the base class returns is passed on."""

    def on_step_end(self, args, state, control, **kwargs):
        control = super().on_step_end(args, state, control, **kwargs)
        if state.global_step == 1:
            control.should_save = True
        if state.global_step == 5:
            control.should_training_stop = True
        return control

    def on_epoch_end(self, args, state, control, **kwargs):
        control = super().on_epoch_end(args, state, control, **kwargs)
        control.should_evaluate = True
        return control


def test_a_subclass_decides_in_its_place(tmp_path):
    built = net_trainer(tmp_path, Sparing(), save_steps=3)
    assert steps_of(built, "on_evaluate_begin") == [4, 5]
    assert saved_steps(tmp_path) == [1, 3]
    assert built.state.global_step == 5


def test_removing_the_class_leaves_the_deciding_to_others(tmp_path):
    built = net_trainer(tmp_path, **STEPS)
    built.remove_callback(DefaultFlowCallback)
    assert "StopAtMaxSteps" not in built.callbacks

    def decide(state, control):
        control.should_log = control.should_evaluate = control.should_save = state.global_step == 5

    built.on("on_step_end", decide)
    with record(built.bus) as trace:
        built.train()
    for event in ("on_log_due", "on_evaluate_due", "on_save_due"):
        assert [step for step, announced in trace.entries if announced == event] == [5]
    assert built.state.global_step == 8, "to the end of the last epoch, because nobody says when to stop"


def test_popping_the_class_returns_the_instance(tmp_path):
    flow = Sparing()
    built = net_trainer(tmp_path, flow, **STEPS)
    assert built.pop_callback(DefaultFlowCallback) is flow
    assert built.pop_callback(DefaultFlowCallback) is None
    assert steps_of(built, "on_log_due") == []


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_removing_the_flow_class_of_transformers_acts_as_there(tmp_path, again, listed):
    transformers = pytest.importorskip("transformers")
    courses = []
    for library in (transformers, trainbus):
        with hushed():
            args = library.TrainingArguments(
                str(tmp_path / library.__name__), max_steps=6, logging_steps=2, save_steps=3, eval_strategy="steps",
                eval_steps=3, use_cpu=True, disable_tqdm=True, report_to="none",
            )  # fmt: skip
            flows = [transformers.DefaultFlowCallback()] * listed
            rows = points(12)
            trainer = library.Trainer(Regression(), args, train_dataset=rows, eval_dataset=rows, callbacks=flows)
            popped = trainer.pop_callback(transformers.DefaultFlowCallback)
            if again:
                trainer.add_callback(popped)
            trainer.train()
        courses.append(
            (logged(trainer, "loss"), logged(trainer, "eval_loss"), saved_steps(tmp_path / library.__name__))
        )
    assert courses[1] == courses[0]
    assert bool(courses[1][0]) == (again or listed)


@pytest.mark.parametrize("library", ["transformers", "trainbus"])
@pytest.mark.parametrize("lines", [False, True])
def test_removing_the_printing_class_removes_the_printing(tmp_path, library, lines):
    names = ["ProgressCallback", "PrinterCallback"]
    built = net_trainer(tmp_path, disable_tqdm=lines)
    module = pytest.importorskip(library)
    if library == "transformers":
        built.remove_callback(getattr(module, names[not lines]))
        assert "Progress" in built.callbacks, "transformers has only one of the two classes attached"
    built.remove_callback(getattr(module, names[lines]))
    assert "Progress" not in built.callbacks


def test_explicit_cadences_stay_independent(tmp_path):
    built = net_trainer(tmp_path, DefaultFlowCallback(), Evaluate(every(4)), logging_steps=3)
    built.train()
    assert logged(built, "eval_loss").keys() == {4}
    assert logged(built, "loss").keys() == {3, 6}


def test_the_printer_prints_each_dict(tmp_path, capsys):
    built = net_trainer(tmp_path, PrinterCallback(), Log(every(3)))
    built.remove_callback(Progress)
    built.train()
    lines = capsys.readouterr().out.splitlines()
    printed = [eval(line) for line in lines if line.startswith("{")]
    assert len(printed) == len(lines) == 3
    assert [entry["loss"] for entry in printed[:2]] == list(logged(built, "loss").values())
    assert "total_flos" not in printed[2]


def test_the_other_names_are_aliases():
    assert TrainerCallback is Callback
    assert ProgressCallback is Progress


def test_transformers_own_callbacks_run_as_they_are(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")

    class Theirs(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                control.should_save = True
            return control

    built = net_trainer(tmp_path, Theirs(), transformers.PrinterCallback(), Checkpoint(never()), Log(every(6)))
    built.train()
    assert saved_steps(tmp_path) == [3]
    assert "{'loss': " in capsys.readouterr().out
    assert [entry.author for entry in built.control.ledger.of("save") if entry.action == "request"] == ["Theirs"]
    assert StopAtMaxSteps in map(type, built.callbacks.values())


EVENTS = ("on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_prediction_step", "on_predict", "on_train_end")


def calling_super(base, called):
    """Return a subclass that overrides every handler in the style of transformers and calls `super()`."""

    def override(name):
        def handler(self, args, state, control, *positional, **kwargs):
            called.append((name, state.global_step))
            getattr(super(made, self), name)(args, state, control, *positional, **kwargs)

        return handler

    made = type("Made", (base,), {name: override(name) for name in EVENTS})
    return made


@pytest.mark.parametrize("name", ["ProgressCallback", "PrinterCallback", "EarlyStoppingCallback", "TrainerCallback"])
def test_subclass_calls_each_handler_of_its_base_as_in_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    courses = []
    for library in (transformers, trainbus):
        called = []
        made = calling_super(getattr(library, name), called)
        arguments = {
            **{"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "logging_steps": 1, "learning_rate": 0.0},
            **{"load_best_model_at_end": True, "metric_for_best_model": "loss", "max_steps": 4, "use_cpu": True},
            **{"disable_tqdm": name != "ProgressCallback", "report_to": "none"},
        }
        with hushed(), contextlib.redirect_stderr(io.StringIO()):
            args = library.TrainingArguments(str(tmp_path / library.__name__), **arguments)
            rows = points(12)
            trainer = library.Trainer(Regression(), args, train_dataset=rows, eval_dataset=rows)
            for printing in (library.ProgressCallback, library.PrinterCallback):
                trainer.remove_callback(printing)
            trainer.add_callback(made(2) if name == "EarlyStoppingCallback" else made())
            trainer.train()
            trainer.predict(rows)
        courses.append((called, trainer.state.global_step))
    assert courses[1] == courses[0]
    assert courses[1][1] == (3 if name == "EarlyStoppingCallback" else 4)


def test_override_of_on_evaluate_replaces_the_decision(tmp_path):
    class Own(EarlyStoppingCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            if state.global_step == 3:
                control.should_training_stop = True

    arguments = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_loss", "learning_rate": 0.0}
    built = net_trainer(tmp_path, Own(1), **arguments)
    built.train()
    assert built.state.global_step == 3, "without the override it stops at step 2"


def test_handler_that_lacks_a_value_says_how_to_pass_it_on(tmp_path):
    built = net_trainer(tmp_path)
    with pytest.raises(
        TypeError, match=r"needs 'run'. Pass all values on: `super\(\).on_train_begin\(args, state, cont"
    ):
        Progress().on_train_begin(built.args, built.state, built.control)
