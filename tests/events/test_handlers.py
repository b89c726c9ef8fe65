"""Parameters of a handler: those that it names, or all of them as in transformers."""

from __future__ import annotations

import inspect

import pytest

from support.fakes import callback_on
from trainbus.events import CATALOG, COMMON_NAMES, EVENTS, Callback, SubscriptionError

POSITIONAL = ("args", "state", "control")


def given(run, handler, event="on_log", **extras):
    """Subscribe a function that returns its own `locals()` and return what it was given."""
    seen = []
    run.bus.on(event, handler(seen))
    run.bus.announce(event, **extras)
    (values,) = seen
    return values


# Narrow parameters.


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_every_named_parameter_of_every_event_is_given_under_its_name(run, event):
    names = (*COMMON_NAMES, *event.param_names)
    seen = []
    scope = {"seen": seen}
    exec(f"def handler({', '.join(reversed(names))}): seen.append(dict(locals()))", scope)
    run.bus.on(event.name, scope["handler"])
    run.bus.announce(event.name)
    assert seen == [{name: getattr(run, name) for name in names}]


def test_handlers_get_only_the_parameters_they_name(run):
    assert given(run, lambda seen: lambda logs, state: seen.append((logs, state))) == (run.logs, run.state)
    assert given(run, lambda seen: lambda state: seen.append(state), "on_save") is run.state
    assert given(run, lambda seen: lambda: seen.append("nothing"), "on_step_end") == "nothing"


def test_positional_three_are_narrow_parameters_where_there_are_no_kwargs(run):
    seen = given(run, lambda seen: lambda args, state, control: seen.append((args, state, control)))
    assert seen == (run.args, run.state, run.control)


def test_three_named_parameters_with_kwargs_are_not_the_positional_three(run):
    seen = given(run, lambda seen: lambda logs, model, run, **kwargs: seen.append((logs, model, run)))
    assert seen == (run.logs, run.model, run)


def test_keyword_only_parameters_are_given(run):
    def keyword_only(seen):
        def handler(state, *, logs):
            seen.append((state, logs))

        return handler

    assert given(run, keyword_only) == (run.state, run.logs)


def test_named_parameter_with_a_default_gets_its_value(run):
    assert given(run, lambda seen: lambda logs=None: seen.append(logs)) == run.logs


def test_own_parameter_with_a_default_is_left_alone(run):
    seen = given(run, lambda seen: lambda logs, sink=3, *, factor=0.5: seen.append((logs, sink, factor)))
    assert seen == (run.logs, 3, 0.5)


def test_default_value_does_not_allow_a_parameter_of_another_event(bus):
    with pytest.raises(SubscriptionError, match="names 'loss', which only"):
        bus.on("on_log", lambda logs, loss=None: None)


def test_values_of_one_announcement_go_before_those_of_the_run(run):
    seen = []
    run.bus.on("on_log", lambda logs, state: seen.append((logs, state)))
    run.bus.announce("on_log", logs={"loss": 1.0})
    run.bus.announce("on_log")
    assert seen == [({"loss": 1.0}, run.state), (run.logs, run.state)]


def test_values_are_read_when_the_event_is_announced(run):
    seen = []
    run.bus.on("on_step_end", lambda loss: seen.append(loss))
    for run.loss in (1.0, 2.0):
        run.bus.announce("on_step_end")
    assert seen == [1.0, 2.0]


# Everything, in the manner of transformers.


def in_the_manner_of_transformers():
    def usual(self, args, state, control, **kwargs):
        self.seen = (args, state, control), kwargs

    def with_named(self, args, state, control, logs=None, **kwargs):
        self.seen = (args, state, control), {"logs": logs, **kwargs}

    def with_required(self, args, state, control, logs, **kwargs):
        self.seen = (args, state, control), {"logs": logs, **kwargs}

    def renamed(self, a, s, c, **kw):
        self.seen = (a, s, c), kw

    def underscored(self, _args, _state, _control, **_):
        self.seen = (_args, _state, _control), _

    def variadic(self, *args, **kwargs):
        self.seen = args, kwargs

    def half_variadic(self, first, *rest, **kwargs):
        self.seen = (first, *rest), kwargs

    def positional_only(self, args, state, control, /, **kwargs):
        self.seen = (args, state, control), kwargs

    return [usual, with_named, with_required, renamed, underscored, variadic, half_variadic, positional_only]


@pytest.mark.parametrize("handler", in_the_manner_of_transformers(), ids=lambda handler: handler.__name__)
def test_handler_with_kwargs_gets_everything(run, handler):
    callback = type("Hearer", (Callback,), {"on_log": handler})()
    run.bus.attach(callback)
    run.bus.announce("on_log", logs={"loss": 1.0})
    positional, named = callback.seen
    assert positional == (run.args, run.state, run.control)
    rest = {name: getattr(run, name) for name in COMMON_NAMES if name not in POSITIONAL}
    assert named == {**rest, "logs": {"loss": 1.0}}


def test_kwargs_alone_hold_everything_by_name(run):
    values = given(run, lambda seen: lambda **kwargs: seen.append(kwargs))
    assert values == {name: getattr(run, name) for name in (*COMMON_NAMES, "logs")}


def test_kwargs_next_to_named_parameters_hold_the_rest(run):
    logs, rest = given(run, lambda seen: lambda logs, **kwargs: seen.append((logs, kwargs)))
    assert logs == run.logs
    assert rest == {name: getattr(run, name) for name in COMMON_NAMES}


def test_callable_without_a_signature_gets_everything(run):
    class Opaque:
        __signature__ = "none"

        def __call__(self, *args, **kwargs):
            self.seen = args, kwargs

    opaque = Opaque()
    with pytest.raises(TypeError):
        inspect.signature(opaque)
    run.bus.on("on_log", opaque)
    run.bus.announce("on_log")
    assert opaque.seen[0] == (run.args, run.state, run.control)
    assert opaque.seen[1]["logs"] == run.logs


# What is refused.


@pytest.mark.parametrize(
    ("handler", "asked", "hint"),
    [
        (lambda self, sate: None, "sate", "did you mean 'state'?"),
        (lambda self, logs, contrl: None, "contrl", "did you mean 'control'?"),
        (lambda self, xyzzy: None, "xyzzy", "Known: args, state, control"),
        (lambda self, logs, *, modle: None, "modle", "did you mean 'model'?"),
        (lambda self, logs, sate=None: None, "sate", "did you mean 'state'?"),
        (lambda self, logs, sate, **kwargs: None, "sate", "did you mean 'state'?"),
        (lambda self, args, state, control, losg, **kwargs: None, "losg", "did you mean 'logs'?"),
        (lambda self, args, state, control, *, losg, **kwargs: None, "losg", "did you mean 'logs'?"),
        (lambda self, *args, losg, **kwargs: None, "losg", "did you mean 'logs'?"),
    ],
)
def test_misspelt_parameter_is_refused_with_the_nearest_name(bus, handler, asked, hint):
    with pytest.raises(SubscriptionError) as refusal:
        bus.attach(type("Metrics", (Callback,), {"on_log": handler})())
    for part in ("Metrics.on_log", repr(asked), hint):
        assert part in str(refusal.value)
    assert bus.subscribers == {}
    assert not bus.hears("on_log")


@pytest.mark.parametrize("parameter", sorted({param for event in EVENTS for param in event.param_names}))
def test_parameter_of_another_event_is_refused_naming_the_events_that_have_it(bus, parameter):
    with pytest.raises(SubscriptionError) as refusal:
        bus.attach(type("Early", (Callback,), {"on_init_end": eval(f"lambda self, {parameter}: None")})())
    owners = [event.name for event in EVENTS if parameter in event.param_names]
    assert f"Early.on_init_end names {parameter!r}, which only {', '.join(owners)} can pass." == str(refusal.value)


def test_refusal_of_a_function_names_function_and_event(bus):
    def note_loss(los):
        """Never called."""

    with pytest.raises(SubscriptionError, match=r"note_loss \(at on_step_end\) names 'los'.* mean 'loss'\?"):
        bus.on("on_step_end", note_loss)
    with pytest.raises(SubscriptionError, match="names 'los'"):
        bus.on("on_step_end", lambda los=None: None)


# What nobody names need not be kept.


@pytest.mark.parametrize(
    "handler",
    [
        lambda self, outputs: None,
        lambda self, state, *, outputs: None,
        lambda self, outputs, **kwargs: None,
        lambda self, args, state, control, outputs=None, **kwargs: None,
        lambda self, *args, outputs=None, **kwargs: None,
    ],
)
def test_bus_knows_which_parameters_handlers_name(bus, handler):
    handle = bus.attach(type("Reader", (Callback,), {"on_step_end": handler})())
    assert "outputs" in bus.named
    handle()
    assert "outputs" not in bus.named


def test_handlers_with_kwargs_ask_for_no_parameter_by_name(bus):
    bus.attach(callback_on("on_step_end", lambda: None))
    bus.on("on_step_end", lambda args, state, control, **kwargs: None)
    assert bus.named.isdisjoint(CATALOG["on_step_end"].param_names)


def test_a_parameter_with_a_default_is_the_functions_own_affair_unless_it_looks_misspelt_or_misplaced(bus):
    seen = []
    for index in range(2):
        bus.on("on_step_end", lambda state, index=index: seen.append(index))
    bus.announce("on_step_end")
    assert seen == [0, 1]
    for wrong in (lambda stat=None: None, lambda metrics=None: None):
        with pytest.raises(SubscriptionError):
            bus.on("on_step_end", wrong)
