"""Attaching: accepted objects, their ids, and refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest

from support.fakes import callback_on
from trainbus.events import Callback, Event, Stage, SubscriptionError


class Quiet(Callback):
    """Overrides nothing."""


class Loud(Callback):
    def on_log(self):
        """Hear."""


def test_only_overridden_handlers_are_connected(bus):
    class Louder(Loud):
        def on_save(self):
            """Hear."""

    bus.attach(Quiet())
    assert not any(map(bus.hears, bus))
    bus.attach(Louder())
    assert [name for name in bus if bus.hears(name)] == ["on_log", "on_save"]


def test_object_of_any_class_with_handlers_is_a_callback(bus, heard):
    class Plain:
        on_log_color = "red"

        def on_log(self, logs):
            heard.append(logs)

        def once(self):
            """Is no handler."""

    bus.attach(Plain())
    bus.announce("on_log", logs={})
    assert heard == [{}]


def test_handler_set_on_the_instance_is_connected(bus, heard):
    callback = Quiet()
    callback.on_log = lambda logs: heard.append(logs)
    bus.attach(callback)
    bus.announce("on_log", logs={})
    assert heard == [{}]


def test_static_and_class_methods_are_handlers(bus, heard):
    class Static(Callback):
        @staticmethod
        def on_log(logs):
            heard.append(logs)

        @classmethod
        def on_save(cls, state):
            heard.append(cls)

    bus.attach(Static())
    bus.announce("on_log", logs=1)
    bus.announce("on_save")
    assert heard == [1, Static]


@pytest.mark.parametrize(
    ("misspelt", "hint"),
    [
        ("on_step_edn", "did you mean 'on_step_end'?"),
        ("on_evaluation", "did you mean 'on_evaluate'?"),
        ("on_xyzzy", "Bad.on_xyzzy matches no event."),
    ],
)
def test_misspelt_handler_is_refused_with_the_nearest_name(bus, misspelt, hint):
    for base in (Callback, object):
        bad = type("Bad", (base,), {misspelt: lambda self: None, "on_log": lambda self: None})()
        with pytest.raises(SubscriptionError) as refusal:
            bus.attach(bad)
        assert f"Bad.{misspelt} matches no event" in str(refusal.value)
        assert hint in str(refusal.value)
    assert bus.subscribers == {}
    assert not bus.hears("on_log")


def test_class_in_place_of_an_instance_is_refused(bus):
    with pytest.raises(SubscriptionError, match=r"Loud is a class. Attach an instance: Loud\(...\)"):
        bus.attach(Loud)


@pytest.mark.parametrize("stranger", [object(), 3, len, {}])
def test_object_without_handlers_is_refused(bus, stranger):
    with pytest.raises(SubscriptionError, match=r"is not a callback.*trainer\.on"):
        bus.attach(stranger)


def test_stage_has_to_be_a_stage(bus):
    with pytest.raises(SubscriptionError, match=r"Loud\.stage is 40, not a Stage"):
        bus.attach(type("Loud", (Loud,), {"stage": 40})())
    with pytest.raises(SubscriptionError, match=r"stage of <lambda> is 'REPORT', not a Stage"):
        bus.on("on_log", lambda: None, stage="REPORT")


def test_own_events_have_to_be_events(bus):
    with pytest.raises(SubscriptionError, match=r"Loud.events contains 'on_spike'.*Event\("):
        bus.attach(type("Loud", (Loud,), {"events": ("on_spike",)})())


# Identity.


def test_ids_are_class_names_numbered_from_the_second_on(bus):
    handles = [bus.attach(Loud()) for _ in range(3)]
    assert list(bus.subscribers) == ["Loud", "Loud-2", "Loud-3"]
    handles[1]()
    bus.attach(Loud())
    assert list(bus.subscribers) == ["Loud", "Loud-3", "Loud-2"]


def test_functions_are_called_by_their_names(bus, heard):
    def note():
        """Hear."""

    for function in (note, note, lambda: None, partial(heard.append, 1)):
        bus.on("on_log", function)
    bus.on("on_log", note, id="mine")
    assert list(bus.subscribers) == ["note", "note-2", "<lambda>", "partial", "mine"]


def test_wanted_id_is_given(bus):
    bus.attach(type("Loud", (Loud,), {"id": "siren"})())
    assert list(bus.subscribers) == ["siren"]


def test_two_with_one_id_are_refused(bus):
    siren = type("Loud", (Loud,), {"id": "siren"})
    bus.attach(siren())
    for attach in (lambda: bus.attach(siren()), lambda: bus.on("on_log", lambda: None, id="siren")):
        with pytest.raises(SubscriptionError, match=r"Two callbacks have the id 'siren'.*id='...'"):
            attach()
    assert len(bus.order_of("on_log")) == 1


def test_automatic_id_avoids_an_explicit_one(bus):
    bus.attach(type("Other", (Loud,), {"id": "Loud"})())
    bus.attach(Loud())
    assert list(bus.subscribers) == ["Loud", "Loud-2"]


def test_same_instance_twice_is_refused(bus):
    callback = Loud()
    bus.attach(callback)
    with pytest.raises(SubscriptionError, match="Loud is already attached"):
        bus.attach(callback)
    assert len(bus.order_of("on_log")) == 1


def test_equal_instances_are_two(bus):
    @dataclass
    class Equal(Callback):
        seen: list = field(default_factory=list)

        def on_log(self):
            self.seen.append(1)

    first, second = Equal(), Equal()
    assert first == second
    bus.attach(first)
    bus.attach(second)
    bus.detach(second)
    bus.announce("on_log")
    assert (first.seen, second.seen) == ([1], [])


def test_refused_callback_leaves_no_trace(bus):
    class HalfGood(Callback):
        def on_log(self):
            """Hear."""

        def on_save(self, nothing):
            """Ask for what is not there."""

    with pytest.raises(SubscriptionError):
        bus.attach(HalfGood())
    assert bus.subscribers == {}
    assert not bus.hears("on_log")


def test_a_callback_without_overrides_has_the_defaults():
    quiet = Quiet()
    assert quiet.from_arguments(None) is None
    assert quiet.state_dict() == {}
    assert quiet.load_state_dict({}) is None
    assert (quiet.stage, quiet.on_error, quiet.local, quiet.id) == (Stage.DECIDE, "raise", False, None)


def test_subscription_names_itself_and_its_event(bus):
    bus.attach(callback_on("on_log", lambda: None, "A"))
    (subscription,) = bus.order_of("on_log")
    assert subscription.label == "A.on_log"
    assert isinstance(subscription.event, Event)


def test_a_subscribed_method_is_detached_by_itself(bus):
    class Counter:
        count = 0

        def note(self):
            self.count += 1

    counter = Counter()
    bus.on("on_step_end", counter.note)
    bus.announce("on_step_end")
    bus.detach(Counter().note)  # the method of another object
    bus.announce("on_step_end")
    bus.detach(counter.note)
    bus.announce("on_step_end")
    assert counter.count == 2


def test_attaching_a_callback_without_a_handler_warns(bus, caplog):
    class Misnamed(Callback):
        def after_step(self):
            """Called by nobody."""

    class Marker(Callback):
        """Only read by others."""

    bus.attach(Marker())
    assert caplog.text == ""
    bus.attach(Misnamed())
    assert "Misnamed has no handler, so no event calls it. It has the methods after_step." in caplog.text
