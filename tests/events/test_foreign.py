"""Callbacks written for transformers attach as they are, and their habits are understood."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import transformers
from transformers import IntervalStrategy
from transformers.trainer_callback import ExportableState

from support.fakes import callback_on
from trainbus.events import COMMON_NAMES, EVENTS, FLAGS, Stage, SubscriptionError

SHARED = [event.name for event in EVENTS if event.origin == "transformers"]


class Recorder(transformers.TrainerCallback):
    """Overrides all sixteen, and keeps what it needs under names that mean something else here."""

    events = ("these", "are", "texts")
    on_error = print
    before = after = stage = id = local = 3

    def __init__(self):
        self.seen = []


for _name in SHARED:
    exec(
        f"def {_name}(self, args, state, control, **kwargs):\n"
        f"    self.seen.append(({_name!r}, (args, state, control), kwargs))",
        scope := {},
    )
    setattr(Recorder, _name, scope[_name])


def test_callback_of_transformers_handles_its_sixteen_events_with_its_arguments(run, bus, caplog):
    recorder = Recorder()
    bus.attach(recorder)
    for event in EVENTS:
        bus.announce(event.name)
    assert [name for name, _, _ in recorder.seen] == SHARED
    for name, positional, named in recorder.seen:
        assert positional == (run.args, run.state, run.control)
        params = next(event.param_names for event in EVENTS if event.name == name)
        assert set(named) == {*COMMON_NAMES, *params} - {"args", "state", "control"}
    assert bus.order_of("on_log")[0].slot.stage is Stage.DECIDE
    assert caplog.records == []


@pytest.mark.parametrize(
    ("callback", "hears"),
    [
        (transformers.TrainerCallback(), set()),
        (transformers.DefaultFlowCallback(), {"on_step_end", "on_epoch_end"}),
        (transformers.PrinterCallback(), {"on_log"}),
        (transformers.EarlyStoppingCallback(), {"on_train_begin", "on_evaluate"}),
        (
            transformers.ProgressCallback(),
            {
                "on_train_begin",
                "on_step_end",
                "on_prediction_step",
                "on_evaluate",
                "on_predict",
                "on_log",
                "on_train_end",
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_overridden_methods_are_connected(bus, callback, hears):
    bus.attach(callback)
    assert {name for name in bus if bus.hears(name)} == hears


def test_methods_of_a_class_in_between_are_connected(bus):
    class Between(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            """Hear."""

    class Last(Between, ExportableState):
        def on_log(self, args, state, control, logs=None, **kwargs):
            """Hear."""

    bus.attach(Last())
    assert {name for name in bus if bus.hears(name)} == {"on_log", "on_save"}


def test_another_library_of_the_family_is_taken_likewise(bus, heard):
    theirs = type("TrainerCallback", (), {name: lambda self, args, state, control, **kwargs: None for name in SHARED})

    class Mine(theirs):
        def on_log(self, args, state, control, logs, **kwargs):
            heard.append(logs)

    bus.attach(Mine())
    assert {name for name in bus if bus.hears(name)} == {"on_log"}
    bus.announce("on_log", logs={})
    assert heard == [{}]


def test_its_misspelt_handler_only_warns(bus, caplog):
    class Misspelt(transformers.TrainerCallback):
        def on_step_edn(self, args, state, control, **kwargs):
            """Is never called."""

        def on_log(self, args, state, control, **kwargs):
            """Hear."""

    bus.attach(Misspelt())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Misspelt.on_step_edn matches no event; did you mean 'on_step_end'?" in record.getMessage()
    assert bus.hears("on_log")


def test_its_unknown_parameter_is_left_alone_if_it_has_a_default(bus, heard):
    class Wide(transformers.TrainerCallback):
        def on_log(self, args, state, control, inputs=None, **kwargs):
            heard.append(inputs)

        def on_save(self, state, inputs=None):
            heard.append(inputs)

    bus.attach(Wide())
    bus.announce("on_log")
    bus.announce("on_save")
    assert heard == [None, None]


def test_its_unknown_parameter_without_a_default_is_refused_as_it_could_never_be_called(bus):
    class Impossible(transformers.TrainerCallback):
        def on_log(self, args, state, control, inputs, **kwargs):
            """Ask for what transformers does not give either."""

    class Narrow(transformers.TrainerCallback):
        def on_log(self, state, inputs):
            """Ask for it in our manner."""

    for callback in (Impossible(), Narrow()):
        with pytest.raises(SubscriptionError, match=r"on_log names 'inputs'"):
            bus.attach(callback)


def test_foreign_callback_is_the_author_of_its_flag_writes(run):
    class Saver(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = True
            return control

    run.bus.attach(Saver())
    run.at_step(3).bus.announce("on_step_end")
    (entry,) = run.control.ledger
    assert str(entry) == "step 3: Saver request save (False -> True) in on_step_end"


@dataclass
class OtherControl:
    """A control of another make."""

    should_save: bool = False
    should_training_stop: object = False
    should_sing: bool = True
    extra: dict = field(default_factory=dict)


@pytest.mark.parametrize("control", [transformers.TrainerControl(should_save=True), OtherControl(should_save=True)])
def test_raised_flags_of_a_returned_control_are_requests(run, control):
    run.control.request("log", "for itself")
    run.bus.attach(callback_on("on_step_end", lambda: control, "Returner"))
    run.bus.announce("on_step_end")
    assert run.control.reasons("save") == {"Returner": "returned by the handler"}
    assert [flag for flag in ("log", "evaluate", "save", "training_stop") if run.control.asks(flag)] == ["log", "save"]


def test_lowered_flags_of_a_returned_control_withdraw_no_request(run):
    run.bus.on("on_step_end", lambda control: control.request("save", "mine"), id="A")
    run.bus.attach(callback_on("on_step_end", transformers.TrainerControl, "Returner"))
    run.bus.announce("on_step_end")
    assert run.control.reasons("save") == {"A": "mine"}


def test_flag_counts_only_if_it_is_true_itself(run):
    run.bus.attach(callback_on("on_step_end", lambda: OtherControl(should_training_stop="perhaps")))
    run.bus.announce("on_step_end")
    assert not run.control.should_training_stop


def test_default_flow_of_transformers_steers_the_run(run):
    strategies = dict.fromkeys(("logging_strategy", "eval_strategy", "save_strategy"), IntervalStrategy.STEPS)
    run.args = SimpleNamespace(**strategies, logging_first_step=False, eval_delay=0)
    run.state.max_steps, run.state.logging_steps, run.state.save_steps, run.state.eval_steps = 6, 2, 3, 4
    run.bus.attach(transformers.DefaultFlowCallback())
    theirs, flow = transformers.TrainerControl(), transformers.DefaultFlowCallback()
    seen = set()
    for step in range(1, 7):
        run.at_step(step).bus.announce("on_step_end")
        flow.on_step_end(run.args, run.state, theirs)
        wanted = {flag for flag in FLAGS if getattr(theirs, f"should_{flag}", False)}
        assert {flag for flag in FLAGS if run.control.take(flag)} == wanted
        theirs.should_log = theirs.should_evaluate = theirs.should_save = False
        seen |= wanted
    assert seen == {"log", "evaluate", "save", "training_stop"}
