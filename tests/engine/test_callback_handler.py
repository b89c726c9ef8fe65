"""`trainer.callback_handler`: its methods, its list and its values may be replaced, as in transformers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import transformers

import trainbus
from support.data import sentences
from support.models import bert
from support.trainers import hushed, regression_trainer
from trainbus.callbacks.flow.log import Log
from trainbus.events import Callback, Stage
from trainbus.events.errors import ArgumentError, SubscriptionError

LIBRARIES = (transformers, trainbus)
IN_ONE = ("on_prediction_step", "on_init_end")  # their number is not compared


class Heard(transformers.TrainerCallback):
    """Notes what it receives at each event of transformers."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def _note(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if event not in IN_ONE:
            named = {name for name in ("logs", "metrics", "extra") if name in kwargs}
            self.heard.append((event, state.global_step, *sorted(named)))


for _event in (name for name in dir(transformers.TrainerCallback) if name.startswith("on_")):
    setattr(Heard, _event, lambda self, *given, _event=_event, **kwargs: self._note(_event, *given, **kwargs))


def of_each(folder: Path, change: Any, *callbacks: type) -> list[Any]:
    """Train with both Trainers after `change(trainer)`; return what it returned, the callbacks and the trainer."""
    found = []
    for library in LIBRARIES:
        with hushed():
            args = library.TrainingArguments(
                str(folder / library.__name__), max_steps=4, per_device_train_batch_size=4, logging_steps=2,
                gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=2, save_strategy="no", use_cpu=True,
                disable_tqdm=True, report_to="none",
            )  # fmt: skip
            data = {"train_dataset": sentences(32), "eval_dataset": sentences(6, seed=1)}
            made = [kind() for kind in callbacks]
            trainer = library.Trainer(model=bert(), args=args, callbacks=made, **data)
            trainer.remove_callback(transformers.PrinterCallback)
            noted = change(trainer)
            trainer.train()
            found.append((noted, made, trainer))
    return found


def replaced(name: str, trainer: Any) -> list[Any]:
    """Replace a method by one that notes its call and calls the former one."""
    handler, calls = trainer.callback_handler, []
    former = getattr(handler, name)

    def noting(*given: Any, **kwargs: Any) -> Any:
        event = given[0] if name == "call_event" else name
        if event not in IN_ONE:
            calls.append((event, trainer.state.global_step, sorted(kwargs), len(given)))
        return former(*given, **kwargs)

    setattr(handler, name, noting)
    return calls


def test_wrapped_call_event_is_called_once_per_event_and_with_the_values_of_transformers(tmp_path):
    theirs, ours = of_each(tmp_path, functools.partial(replaced, "call_event"), Heard, Heard)
    assert ours[0] == theirs[0] != []
    assert [each.heard for each in ours[1]] == [each.heard for each in theirs[1]]
    assert ours[1][0].heard == ours[1][1].heard != []


def test_event_without_callbacks_reaches_the_wrapped_call_event(tmp_path):
    theirs, ours = of_each(tmp_path, functools.partial(replaced, "call_event"))
    assert ours[0] == theirs[0] != []


@pytest.mark.parametrize("event", ["on_evaluate", "on_log", "on_step_end", "on_train_begin"])
def test_wrapped_method_of_an_event_is_called_with_the_values_of_transformers(event, tmp_path):
    theirs, ours = of_each(tmp_path, functools.partial(replaced, event), Heard)
    assert ours[0] == theirs[0] != []
    assert ours[1][0].heard == theirs[1][0].heard != []


def test_two_wrappers_are_both_called(tmp_path):
    def twice(trainer: Any) -> Any:
        return replaced("call_event", trainer), replaced("call_event", trainer), replaced("on_log", trainer)

    theirs, ours = of_each(tmp_path, twice, Heard)
    assert ours[0] == theirs[0]
    assert all(ours[0])


class WantsMore(trainbus.TrainerCallback):
    """A callback for a library that passes `extra`."""

    received: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, extra: Any, model: Any, **kwargs: Any) -> None:
        self.received = (args, extra, model)

    def on_step_end(self, args: Any, state: Any, control: Any, extra: Any, **kwargs: Any) -> Any:
        control.should_training_stop = True
        return control


def library_style(trainer: Any) -> Any:
    """Replace `call_event` as libraries do: with own arguments, and own values by name."""

    def call_event(event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        for callback in trainer.callback_handler.callbacks:
            answer = getattr(callback, event)("own args", state, control, model="own model", extra=1, **kwargs)
            control = control if answer is None else answer
        return control

    trainer.callback_handler.call_event = call_event


def test_replaced_call_event_passes_its_own_values_and_the_callback_is_the_author(tmp_path):
    trainer = regression_trainer(tmp_path, args={"max_steps": 3, "logging_strategy": "steps", "logging_steps": 1})
    library_style(trainer)
    wants = WantsMore()
    trainer.add_callback(wants)
    trainer.train()
    assert wants.received == ("own args", 1, "own model")
    assert trainer.state.global_step == 1
    assert "WantsMore" in trainer.control.why("training_stop")
    assert any("loss" in entry for entry in trainer.state.log_history)  # callbacks of trainbus are called by the bus


def test_callback_that_wants_more_is_refused_without_a_replaced_method(tmp_path):
    with pytest.raises(SubscriptionError, match="'extra', which on_step_end does not pass"):
        regression_trainer(tmp_path).add_callback(WantsMore())


def test_announcing_the_init_reaches_callbacks_that_were_added_since(tmp_path):
    class Init(Callback):
        inits = 0

        def on_init_end(self, args, state, control, **kwargs):
            self.inits += 1

    trainer = regression_trainer(tmp_path)
    late = Init()
    trainer.add_callback(late)
    assert late.inits == 0
    trainer.callback_handler.on_init_end(trainer.args, trainer.state, trainer.control)
    assert late.inits == 1
    library_style(trainer)
    trainer.callback_handler.on_init_end(trainer.args, trainer.state, trainer.control)
    assert late.inits == 2


def test_replaced_method_keeps_the_stages_and_the_handlers_that_name_their_values(tmp_path):
    order: list[str] = []

    class Measuring(Callback):
        stage = Stage.MEASURE

        def on_step_end(self, state):
            order.append("measures")

    class Naming(Callback):
        def on_step_end(self, state):
            order.append("names")

    class Reporting(Callback):
        stage = Stage.REPORT

        def on_step_end(self, args, state, control, **kwargs):
            order.append("reports")

    trainer = regression_trainer(tmp_path, args={"max_steps": 1}, callbacks=[Reporting(), Naming(), Measuring()])
    handler = trainer.callback_handler
    former = handler.call_event

    def call_event(event: str, *given: Any, **kwargs: Any) -> Any:
        if event == "on_step_end":
            order.append("calls")
            assert [*handler.callbacks] == [heard]
        return former(event, *given, **kwargs)

    handler.call_event = call_event
    heard = Heard()
    handler.add_callback(heard)
    trainer.train()
    assert order == ["measures", "names", "calls", "reports"]
    assert ("on_step_end", 1) in heard.heard


def test_values_of_an_announcement_reach_the_handlers(tmp_path):
    trainer, heard = regression_trainer(tmp_path), Heard()
    trainer.add_callback(heard)
    trainer.callback_handler.on_step_end(trainer.args, trainer.state, trainer.control, extra=1)
    trainer.callback_handler.call_event("on_log", trainer.args, trainer.state, trainer.control, logs={"loss": 1.0})
    assert heard.heard == [("on_step_end", 0, "extra"), ("on_log", 0, "logs")]


def test_event_of_a_program_reaches_the_callbacks_that_have_it(tmp_path, caplog):
    class OwnEvent(trainbus.TrainerCallback):
        got: Any = None

        def on_own_event(self, args: Any, state: Any, control: Any, extra: Any, **kwargs: Any) -> None:
            self.got = (extra, kwargs["model"])

    trainer, callback = regression_trainer(tmp_path), OwnEvent()
    trainer.bus.declare(trainbus.Event("on_own_event", "A program says something.", ("extra",)))
    trainer.add_callback(callback)
    trainer.callback_handler.call_event("on_own_event", trainer.args, trainer.state, trainer.control, extra=1)
    assert callback.got == (1, trainer.model)
    with pytest.raises(AttributeError, match="No callback has a method 'on_none'"):
        trainer.callback_handler.call_event("on_none", trainer.args, trainer.state, trainer.control)


def test_value_that_is_set_reaches_the_handlers_in_its_place(tmp_path):
    models: list[Any] = []

    class Model(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
            models.append(model)

    for trainer in (regression_trainer(tmp_path, args={"max_steps": 1}, callbacks=[Model()]) for _ in range(2)):
        assert trainer.callback_handler.model is trainer.model
        trainer.callback_handler.model = "another"
        trainer.callback_handler.own = 1
        assert trainer.callback_handler.own == 1
        trainer.train()
    assert models == ["another", "another"]


def test_list_of_callbacks_attaches_detaches_and_orders(tmp_path):
    trainer, first, last = regression_trainer(tmp_path), Heard(), Heard()
    callbacks = trainer.callback_handler.callbacks
    before = callbacks.copy()
    callbacks.append(last)
    callbacks.insert(0, first)
    assert trainer.callback_handler.callbacks == [first, *before, last]
    assert list(trainer.callbacks.values()) == [first, *before, last]
    callbacks.remove(last)
    assert callbacks.pop(0) is first
    assert callbacks == before
    callbacks.sort(key=lambda each: type(each).__name__)
    assert [*callbacks] == sorted(before, key=lambda each: type(each).__name__)
    trainer.callback_handler.callbacks = [each for each in callbacks if not isinstance(each, Log)]
    assert not any(isinstance(each, Log) for each in trainer.callbacks.values())
    assert "Log" not in trainer.callback_handler.callback_list.split()
    assert callbacks + before == [*callbacks, *before]
    assert before + callbacks == [*before, *callbacks]


class HandlerOfALibrary(transformers.trainer_callback.CallbackHandler):
    """A handler that passes one more value."""

    extra = 1

    def call_event(self, event, args, state, control, **kwargs):
        for callback in self.callbacks:
            values = {"model": self.model, "optimizer": self.optimizer, "extra": self.extra, **kwargs}
            answer = getattr(callback, event)(args, state, control, **values)
            control = control if answer is None else answer
        return control


def test_handler_of_a_library_calls_the_callbacks(tmp_path):
    def assign(trainer: Any) -> Any:
        handler = HandlerOfALibrary([*trainer.callback_handler.callbacks], trainer.model, None, None, None)
        trainer.callback_handler = handler
        assert trainer.callback_handler.extra == 1
        trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        late = Heard()
        handler.add_callback(late)
        return late

    theirs, ours = of_each(tmp_path, assign, Heard)
    assert ours[1][0].heard == theirs[1][0].heard != []
    assert ours[0].heard == theirs[0].heard == ours[1][0].heard[1:]
    assert all("extra" in heard for heard in ours[0].heard)


@pytest.mark.parametrize("name", ["add_callback", "on_setup"])
def test_method_that_cannot_be_replaced_is_refused(name, tmp_path):
    handler = regression_trainer(tmp_path).callback_handler
    with pytest.raises(ArgumentError, match=rf"`callback_handler.{name}` cannot be replaced.*on_step_end"):
        setattr(handler, name, print)
    with pytest.raises(ArgumentError, match="Set a function"):
        handler.call_event = None
    with pytest.raises(AttributeError, match=r"no 'call_evnt'.*call_event"):
        _ = handler.call_evnt
