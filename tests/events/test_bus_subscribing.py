"""Attaching and detaching: references, handles, filters, own events, receivers of third parties."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest

from support.fakes import FakeRun, callback_on
from trainbus.events import CATALOG, Callback, Clock, Event, Stage, SubscriptionError

# Who is held.


class Holder:
    def __init__(self, heard):
        self.heard = heard

    def note(self):
        self.heard.append("method")


def test_handlers_stay_subscribed_without_other_references(bus, heard):
    bus.attach(callback_on("on_log", partial(heard.append, "callback")))
    bus.on("on_log", Holder(heard).note)
    bus.on("on_log", lambda: heard.append("lambda"))
    bus.signals["on_log"].connect(lambda run, logs: heard.append("third party"))
    gc.collect()
    bus.announce("on_log")
    gc.collect()
    bus.announce("on_log")
    assert heard == 2 * ["callback", "method", "lambda", "third party"]


def test_detached_callbacks_are_garbage_collected(bus):
    callback = callback_on("on_log", lambda: None)
    gone = weakref.ref(callback)
    handle = bus.attach(callback)
    bus.announce("on_log")
    handle()
    del callback
    bus.announce("on_log")
    gc.collect()
    assert gone() is None


# Handles.


def test_handle_unsubscribes_once_and_a_second_call_has_no_effect(bus, heard):
    handle = bus.attach(callback_on("on_log", partial(heard.append, "A"), "A"))
    assert handle.owner_id == "A"
    bus.announce("on_log")
    handle()
    handle()
    bus.announce("on_log")
    assert heard == ["A"]
    assert bus.subscribers == {}
    assert not bus.hears("on_log")


def test_handle_unsubscribes_at_the_end_of_its_with_block_also_on_an_error(bus, heard):
    with pytest.raises(ValueError), bus.on("on_log", lambda: heard.append("A"), id="A") as handle:  # noqa: PT012
        assert handle.owner_id == "A"
        bus.announce("on_log")
        raise ValueError
    bus.announce("on_log")
    assert heard == ["A"]


def test_a_used_handle_does_not_detach_a_later_callback_with_the_id(bus, heard):
    spent = bus.attach(callback_on("on_log", lambda: None, "A"))
    spent()
    bus.attach(callback_on("on_log", partial(heard.append, "successor"), "A"))
    spent()
    bus.announce("on_log")
    assert heard == ["successor"]


@pytest.mark.parametrize("named_by", ["object", "id"])
def test_detach_takes_the_object_or_its_id(bus, named_by):
    callback = callback_on("on_log", lambda: None, "A")
    bus.attach(callback)
    bus.detach(callback if named_by == "object" else "A")
    bus.detach(callback if named_by == "object" else "A")
    assert not bus.hears("on_log")


def test_detaching_others_and_oneself_inside_a_handler_is_safe(bus, heard):
    def leave():
        heard.append("B")
        for name in ("A", "B", "C"):
            bus.detach(name)

    bus.attach(callback_on("on_log", partial(heard.append, "A"), "A"))
    bus.attach(callback_on("on_log", leave, "B"))
    bus.attach(callback_on("on_log", partial(heard.append, "C"), "C"))
    bus.attach(callback_on("on_log", partial(heard.append, "D"), "D"))
    bus.announce("on_log")
    assert heard[:2] == ["A", "B"]
    assert heard[-1] == "D"
    heard.clear()
    bus.announce("on_log")
    assert heard == ["D"]


def test_attaching_inside_a_handler_counts_from_the_next_announcement(bus, heard):
    def invite():
        if "Guest" not in bus.subscribers:
            bus.attach(callback_on("on_log", partial(heard.append, "Guest"), "Guest"))

    bus.on("on_log", invite)
    bus.announce("on_log")
    assert heard == []
    bus.announce("on_log")
    assert heard == ["Guest"]


# Filters of functions.


def announced_counts(event: str, upto: int = 12, **filters) -> list[int]:
    """Return the counts, from 1, at which a function with these filters is called."""
    run, heard = FakeRun(), []
    clock = CATALOG[event].clock
    run.bus.on(event, lambda: heard.append(now), **filters)
    for now in range(1, upto + 1):
        run.counts[clock] = now
        run.bus.announce(event)
    return heard


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, list(range(1, 13))),
        ({"every": 1}, list(range(1, 13))),
        ({"every": 5}, [5, 10]),
        ({"once": 3}, [3]),
        ({"before": 3}, [1, 2]),
        ({"after": 10}, [11, 12]),
        ({"after": 0}, list(range(1, 13))),
        ({"after": 2, "every": 4}, [6, 10]),
        ({"after": 1, "every": 3}, [4, 7, 10]),
        ({"after": 2, "before": 5}, [3, 4]),
        ({"every": 5, "before": 10}, [5]),
        ({"every": 5, "before": 11}, [5, 10]),
    ],
)
@pytest.mark.parametrize("event", ["on_log", "on_step_end", "on_step_begin", "on_epoch_end"])
def test_filters_pass_the_counts_they_name(event, filters, expected):
    assert announced_counts(event, **filters) == expected


def test_announcements_are_counted_by_each_function_from_its_subscription_on(bus, heard):
    bus.on("on_log", lambda: heard.append("old"), every=2)
    bus.announce("on_log")
    bus.on("on_log", lambda: heard.append("new"), every=2)
    bus.announce("on_log")
    bus.announce("on_log")
    assert heard == ["old", "new"]


@pytest.mark.parametrize(
    "filters",
    [
        {"every": 0},
        {"every": -5},
        {"once": 0},
        {"before": 0},
        {"before": 1},
        {"after": -1},
        {"after": 5, "before": 5},
        {"after": 5, "before": 6},
        {"after": 2, "every": 4, "before": 6},
        {"every": 5, "before": 5},
        {"once": 3, "every": 2},
        {"once": 3, "after": 2},
        {"once": 3, "before": 5},
    ],
    ids=str,
)
def test_filters_that_never_pass_or_clash_are_refused(bus, filters):
    with pytest.raises(SubscriptionError, match=r"is never met|cannot be combined"):
        bus.on("on_step_end", lambda: None, **filters)
    assert bus.subscribers == {}


def test_a_refused_filter_names_its_first_possible_step(bus):
    with pytest.raises(SubscriptionError, match="before=6 is never met: the first count is 7"):
        bus.on("on_step_end", lambda: None, after=2, every=5, before=6)


def test_unknown_event_is_refused_with_the_nearest_name(bus):
    for use in (partial(bus.on, function=lambda: None), bus.announce, bus.hears, bus.order_of, bus.signals.__getitem__):
        with pytest.raises(SubscriptionError, match=r"Unknown event 'on_step_edn'; did you mean 'on_step_end'\?"):
            use("on_step_edn")


# Events of one's own.

SPIKE = Event("on_spike", "The loss jumped.", ("height",), clock=Clock.CALLS)


class Spikes(Callback):
    events = (SPIKE,)

    def on_log(self, run):
        run.bus.announce("on_spike", height=3.5)


class SpikeReader(Callback):
    def __init__(self, heard):
        self.heard = heard

    def on_spike(self, height, state):
        self.heard.append((height, state.global_step))


def test_callback_brings_its_own_events(run, bus, heard):
    bus.attach(Spikes())
    bus.attach(SpikeReader(heard))
    run.at_step(4)
    bus.announce("on_log")
    assert heard == [(3.5, 4)]


class Saves(Callback):
    def state_dict(self):
        return {"seen": 1}


class Loads(Callback):
    def load_state_dict(self, state): ...


class Both(Saves, Loads):
    pass


@pytest.mark.parametrize(("kind", "told"), [(Saves, "A resumed run"), (Loads, "Checkpoints do not"), (Both, "")])
def test_a_callback_that_only_saves_or_only_loads_gives_a_warning(bus, caplog, kind, told):
    bus.attach(kind())
    assert told in caplog.text
    assert bool(caplog.records) == bool(told)


def test_event_is_unknown_until_it_is_declared(bus, heard):
    with pytest.raises(SubscriptionError, match=r"SpikeReader\.on_spike matches no event.* attach that callback first"):
        bus.attach(SpikeReader(heard))
    bus.declare(SPIKE)
    bus.declare(SPIKE)
    bus.attach(SpikeReader(heard))
    bus.announce("on_spike", height=1.0)
    assert heard == [(1.0, 0)]


def test_own_event_has_parameters_and_stages_like_any(bus, heard):
    bus.declare(SPIKE)
    with pytest.raises(SubscriptionError, match=r"on_spike does not pass; did you mean 'height'\?"):
        bus.on("on_spike", lambda heigth: None)
    bus.on("on_spike", lambda: heard.append("report"), stage=Stage.REPORT)
    bus.on("on_spike", lambda: heard.append("decide"))
    bus.announce("on_spike", height=1.0)
    assert heard == ["decide", "report"]


def test_two_callbacks_may_declare_the_same_event_but_not_give_it_two_meanings(bus):
    bus.attach(Spikes())
    bus.attach(Spikes())
    other = type("Other", (Callback,), {"events": (Event("on_spike", "Something else."),)})()
    with pytest.raises(SubscriptionError, match=r"'on_spike' \(The loss jumped\) exists .* value of doc, params"):
        bus.attach(other)
    with pytest.raises(SubscriptionError, match="exists already, with another value of doc"):
        bus.declare(Event("on_log", "Mine now."))


def test_event_has_to_be_named_like_one(bus):
    with pytest.raises(SubscriptionError, match="'spike' does not begin with 'on_'"):
        bus.declare(Event("spike", "The loss jumped."))


def test_own_events_belong_to_one_trainer(bus):
    bus.declare(SPIKE)
    assert "on_spike" in list(bus)
    assert "on_spike" not in list(FakeRun().bus)
    assert "on_spike" not in CATALOG


# Receivers connected through blinker.


def test_third_party_runs_in_stage_decide_with_the_values_of_the_event(run, heard):
    run.bus.on("on_log", lambda: heard.append("report"), stage=Stage.REPORT)
    run.bus.on("on_log", lambda: heard.append("measure"), stage=Stage.MEASURE)
    run.bus.signals["on_log"].connect(lambda sender, **values: heard.append((sender, values)))
    run.bus.announce("on_log", logs={"loss": 1.0})
    assert heard == ["measure", (run, {"logs": {"loss": 1.0}}), "report"]


def test_third_parties_keep_their_place_in_the_order_of_attachment(bus, heard):
    def receiver(sender, logs):
        heard.append("third party")

    bus.on("on_log", lambda: heard.append("before it"))
    bus.signals["on_log"].connect(receiver)
    bus.on("on_log", lambda: heard.append("after it"))
    bus.announce("on_log")
    bus.on("on_log", lambda: heard.append("last"))
    heard.clear()
    bus.announce("on_log")
    assert heard == ["before it", "third party", "after it", "last"]


def test_third_party_may_connect_to_the_run_as_sender(run, heard):
    run.bus.signals["on_log"].connect(lambda sender, logs: heard.append("mine"), sender=run)
    run.bus.signals["on_log"].connect(lambda sender, logs: heard.append("other's"), sender=FakeRun())
    run.bus.announce("on_log")
    assert heard == ["mine"]


def test_third_party_disconnects_through_blinker(bus, heard):
    def receiver(sender, logs):
        heard.append("heard")

    with bus.signals["on_log"].connected_to(receiver):
        bus.announce("on_log")
    bus.announce("on_log")
    bus.signals["on_log"].connect(receiver)
    bus.announce("on_log")
    bus.signals["on_log"].disconnect(receiver)
    bus.announce("on_log")
    assert heard == 2 * ["heard"]
    assert not bus.hears("on_log")


def test_third_party_that_comes_back_comes_last(bus, heard):
    def first(sender, logs):
        heard.append("first")

    bus.signals["on_log"].connect(first)
    bus.on("on_log", lambda: heard.append("second"))
    bus.signals["on_log"].disconnect(first)
    bus.signals["on_log"].connect(first)
    bus.announce("on_log")
    assert heard == ["second", "first"]


def test_a_blinker_receiver_is_the_author_of_its_requests(run):
    def impatient(sender, **values):
        sender.control.should_save = True

    run.bus.signals["on_step_end"].connect(impatient)
    run.bus.announce("on_step_end")
    assert any("impatient" in author for author in run.control.reasons("save"))


def test_signal_can_be_sent_through_blinker(run, heard):
    run.bus.on("on_log", lambda state, logs: heard.append((state, logs)))
    run.bus.signals["on_log"].send(run, logs={"loss": 1.0})
    assert heard == [(run.state, {"loss": 1.0})]


def test_two_trainers_share_no_events(heard):
    mine, other = FakeRun().bus, FakeRun().bus
    for name, bus in (("mine", mine), ("other", other)):
        bus.attach(callback_on("on_log", partial(heard.append, name)))
        bus.signals["on_log"].connect(lambda sender, name=name, **values: heard.append(f"{name}, third party"))
    mine.announce("on_log")
    assert heard == ["mine", "mine, third party"]


# Announcing.


def test_author_and_event_are_those_of_the_innermost_handler(run, heard):
    def note(name):
        heard.append((name, run.control.speaker, run.control.speaking.event))

    def outer():
        note("before")
        run.bus.announce("on_log")
        note("after")

    run.bus.attach(callback_on("on_log_due", outer, "Outer"))
    run.bus.attach(callback_on("on_log", partial(note, "inside"), "Inner"))
    run.bus.announce("on_log_due")
    note("outside")
    assert heard == [
        ("before", "Outer", "on_log_due"),
        ("inside", "Inner", "on_log"),
        ("after", "Outer", "on_log_due"),
        ("outside", "you", ""),
    ]


@pytest.mark.parametrize(
    "answer", [None, True, 0, "stop", {"should_save": True}, object(), [1]], ids=lambda answer: type(answer).__name__
)
def test_any_return_value_of_a_handler_is_harmless(bus, control, answer):
    bus.attach(callback_on("on_step_end", lambda: answer))
    bus.announce("on_step_end")
    assert list(control.ledger) == []


def test_watchers_see_events_without_handlers(run, heard):
    run.bus.watchers.append(lambda event, seen: heard.append((event, seen)))
    run.bus.announce("on_log")
    assert heard == [("on_log", run)]


def test_bus_lists_its_events(bus):
    assert list(bus) == list(CATALOG)


@pytest.mark.parametrize("name", ["every", "once", "before", "after"])
def test_a_filter_that_is_not_a_whole_number_is_refused(bus, name):
    with pytest.raises(SubscriptionError, match=rf"{name}=2\.5 is not a whole number. Write one"):
        bus.on("on_step_end", lambda: None, **{name: 2.5})


def test_a_text_as_a_count_is_refused(bus):
    with pytest.raises(SubscriptionError, match="every='10' is not a whole number"):
        bus.on("on_step_end", lambda: None, every="10")


def test_an_id_that_is_not_a_text_is_refused(bus):
    with pytest.raises(SubscriptionError, match="The id 3 is not a text"):
        bus.on("on_step_end", lambda: None, id=3)
