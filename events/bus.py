"""The event bus: blinker's signals, called in a resolved order, with an author, and with failures kept apart."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import blinker

from .activity import note_activity
from .catalog import CATALOG, LAST_IN_FIRST_OUT, MUST_ALL_HEAR, Event
from .control import TrainerControl
from .errors import SubscriptionError, nearest
from .filters import filter_of, filtered, ids_in, number_in
from .handlers import Call, Handler, compile_handler
from .ordering import Place, resolve
from .stages import ORDER_MARK, Order, Stage
from .subscribers import Subscriber, checked_policy, identity, inspect_subscriber, own_events

logger = logging.getLogger(__name__)

OnError = Literal["raise", "warn", "quarantine"]


@dataclass(eq=False)
class Subscription:
    """One handler of one subscriber at one event: what a signal holds."""

    event: Event
    owner: object
    """The callback, or the function itself."""
    owner_id: str
    handler: Handler
    call: Call
    place: Place
    on_error: str = "raise"
    names: frozenset[str] = frozenset()
    """The parameters that the handler names."""

    @property
    def label(self) -> str:
        """How the handler is named to people."""
        return f"{self.owner_id}.{self.event.name}"

    def __call__(self, sender: Any, **extras: Any) -> Any:
        """Answer a plain `signal.send(run, ...)`, as any blinker receiver does."""
        return self.call(sender, extras)


class _Ordered(dict[Any, None]):
    """A set that remembers insertion, which is all that blinker asks of a `set_class`."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def copy(self) -> _Ordered:
        return _Ordered(self)

    def __or__(self, other: Any) -> _Ordered:  # type: ignore[override]
        return _Ordered(dict.fromkeys([*self, *other]))


class Channel(blinker.Signal):
    """One event's signal. Receivers are held strongly and in order; connecting anew resolves the order anew."""

    set_class = _Ordered  # type: ignore[assignment]

    def __init__(self, event: Event) -> None:
        super().__init__(event.doc)
        self.event = event
        self.plan: tuple[Subscription, ...] | None = None

    def connect(self, receiver: Any, sender: Any = blinker.ANY, weak: bool = False) -> Any:
        """Connect a receiver, strongly unless told otherwise: blinker's default drops bound methods silently."""
        self.plan = None
        return super().connect(receiver, sender, weak=weak)

    def disconnect(self, receiver: Any, sender: Any = blinker.ANY) -> None:
        """Disconnect a receiver."""
        self.plan = None
        super().disconnect(receiver, sender)


class _Signals(dict[str, Channel]):
    """All channels by name; one that is not there is an error with the nearest name."""

    def __missing__(self, event: str) -> Channel:
        raise SubscriptionError(f"There is no event {event!r}{nearest(event, self)}")


@dataclass
class Handle:
    """What subscribing returns. Call it, or leave its `with` block, to unsubscribe."""

    owner_id: str
    _undo: Callable[[], None] = field(repr=False)

    def __call__(self) -> None:
        self._undo()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self()

    def __getstate__(self) -> dict[str, Any]:
        return {"owner_id": self.owner_id, "_undo": bool}  # which does nothing: in another process there is no bus


class EventBus:
    """All signals of one trainer, and who hears them in which order.

    `attach` takes a callback with `on_*` methods, `on` a plain function for one event; both return a `Handle`.
    `announce` calls the hearers. Third parties may use blinker's own `signals[name].connect(receiver)`; they are called
    as `receiver(run, **values)` in the DECIDE stage, as any callback that names no stage.
    """

    def __init__(self, run: Any, control: TrainerControl) -> None:
        """Create a signal for each event of the catalogue.

        Args:
            run: the record that handlers are given values from.
            control: told who is speaking, so that each write has an author.
        """
        self.run = run
        self.control = control
        self.signals: dict[str, Channel] = _Signals((name, Channel(event)) for name, event in CATALOG.items())
        self._subscribers: dict[str, Subscriber] = {}
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._ids: set[str] = set()  # also of those that left: who ordered itself by one may stay
        self.watchers: list[Callable[[str, Any], None]] = []
        """Called with each event that is announced and the run, heard by anybody or not; for recording."""

    # Subscribing.

    def declare(self, event: Event) -> None:
        """Add an event of one's own; declaring the same event again changes nothing.

        Raises:
            SubscriptionError: if the name is taken by another event, or does not begin with `on_`.
        """
        if not event.name.startswith("on_"):
            raise SubscriptionError(f"An event's name begins with 'on_': {event.name!r} does not.")
        known = self.signals.setdefault(event.name, Channel(event)).event
        if known != event:
            raise SubscriptionError(f"The event {event.name!r} exists already, with another meaning: {known.doc!r}.")

    def attach(self, subscriber: object) -> Handle:
        """Subscribe every `on_*` method of a callback to the event of its name.

        Raises:
            SubscriptionError: if a method matches no event or names an unknown parameter (with the nearest name), if
                the id is taken, or if the callback is attached already.
        """
        for event in own_events(subscriber):
            self.declare(event)
        record = inspect_subscriber(subscriber, self.signals)
        for other_id, other in self._subscribers.items():
            if other.callback is subscriber:
                raise SubscriptionError(f"{other_id} is attached already; attach a second instance to have two of it.")
        owner_id = identity(subscriber, record.wanted_id, self._subscribers)
        policy = checked_policy(record.on_error, owner_id)
        subscriptions = []
        for name, handler in record.handlers.items():
            event = self.signals[name].event
            call, asked = compile_handler(handler, event, f"{owner_id}.{name}", lenient=record.foreign)
            mark: Order = getattr(handler, ORDER_MARK, Order())
            stage = mark.stage if mark.stage is not None else record.stage
            place = Place(owner_id, stage, mark.before or record.before, mark.after or record.after)
            subscriptions.append(Subscription(event, subscriber, owner_id, handler, call, place, policy, asked))
        return self._connect(owner_id, record, subscriptions)

    def on(
        self,
        event: str,
        function: Handler,
        *,
        every: int | None = None,
        once: int | None = None,
        before: int | str | Iterable[str] | None = None,
        after: int | str | Iterable[str] | None = None,
        stage: Stage = Stage.DECIDE,
        on_error: OnError = "raise",
        id: str | None = None,
    ) -> Handle:
        """Subscribe a plain function to one event.

        Args:
            event: the event's name.
            function: called with the parameters it names.
            every: call it at every n-th step, epoch or occurrence, whichever the event counts.
            once: call it at exactly the n-th.
            before: a number: only before the n-th. A name, or several: run before these callbacks.
            after: a number: only after the n-th, `every` counting from there. A name, or several: run after these.
            stage: what it is for.
            on_error: `raise`, `warn` (log and go on) or `quarantine` (log and unsubscribe it).
            id: its name in the ledger and in error messages; by default the function's own.

        Raises:
            SubscriptionError: for an unknown event or parameter, with the nearest name, or filters that clash.
        """
        channel = self.signals[event]
        owner_id = identity(function, id, self._subscribers)
        call, asked = compile_handler(function, channel.event, f"{owner_id} (at {event})")
        keep = filter_of(every, once, number_in(before), number_in(after))
        policy = checked_policy(on_error, owner_id)
        place = Place(owner_id, stage, ids_in(before), ids_in(after))
        due = filtered(call, keep, channel.event.clock) if keep is not None else call
        subscription = Subscription(channel.event, function, owner_id, function, due, place, policy, asked)
        record = Subscriber(function, {event: function}, stage)
        return self._connect(owner_id, record, [subscription])

    def _connect(self, owner_id: str, record: Subscriber, subscriptions: list[Subscription]) -> Handle:
        self._ids.add(owner_id)
        self._subscribers[owner_id] = record
        self._subscriptions[owner_id] = subscriptions
        for subscription in subscriptions:
            self.signals[subscription.event.name].connect(subscription)

        this = weakref.ref(record)

        def undo() -> None:
            if self._subscribers.get(owner_id) is this():  # and not a successor of the same id
                self.detach(owner_id)

        return Handle(owner_id, undo)

    def detach(self, subscriber: object) -> None:
        """Unsubscribe a callback, or whatever has this id; one that is not attached is left alone."""
        found = [owner_id for owner_id, record in self._subscribers.items() if _is_same(record.callback, subscriber)]
        for owner_id in found or ([subscriber] if isinstance(subscriber, str) else []):
            self._subscribers.pop(owner_id, None)
            for subscription in self._subscriptions.pop(owner_id, ()):
                self.signals[subscription.event.name].disconnect(subscription)

    @property
    def subscribers(self) -> dict[str, Any]:
        """All attached callbacks and functions by id, in order of attachment."""
        return {owner_id: record.callback for owner_id, record in self._subscribers.items()}

    # Announcing.

    def hears(self, event: str) -> bool:
        """Say whether anybody hears `event`."""
        return bool(self.signals[event].receivers)

    def asked_for(self, parameter: str) -> bool:
        """Say whether any handler names `parameter`, so that what nobody reads need not be kept alive."""
        return any(parameter in hearer.names for hearers in self._subscriptions.values() for hearer in hearers)

    def plan(self, event: str) -> tuple[Subscription, ...]:
        """Return who hears `event`, in the order in which they are called.

        Raises:
            SubscriptionError: if `before=` or `after=` name an unknown id, contradict the stages, or form a circle.
        """
        channel = self.signals[event]
        if channel.plan is None:
            hearers = [self._as_subscription(hearer, channel) for hearer in channel.receivers_for(self.run)]
            by_place = {replace(hearer.place, serial=serial): hearer for serial, hearer in enumerate(hearers)}
            resolved = resolve(list(by_place), self._ids, event)
            ordered = tuple(by_place[place] for place in resolved)
            channel.plan = ordered[::-1] if event in LAST_IN_FIRST_OUT else ordered
        return channel.plan

    def resolve(self) -> None:
        """Resolve the order of every event now, so that an impossible one is refused before the run begins."""
        for name in self.signals:
            self.plan(name)

    def announce(self, event: str, **extras: Any) -> None:
        """Call all hearers of `event`, in order.

        A handler's return value is ignored, except a control of another kind (as a handler written for transformers
        may return), whose raised flags count as requests. What a failing handler does to the others is its `on_error`:
        by default the exception goes up, naming the handler; at closing events all others hear first.
        """
        channel = self.signals[event]
        plan = channel.plan
        if plan is None:
            plan = self.plan(event)
        if self.watchers:
            for watch in self.watchers:
                watch(event, self.run)
        if not plan:
            return
        run, control, speaking = self.run, self.control, self.control.speaking
        failure: BaseException | None = None
        before = speaking.author, speaking.event
        try:
            for subscription in plan:
                speaking.author, speaking.event = subscription.owner_id, event
                try:
                    answer = subscription.call(run, extras)
                except BaseException as error:
                    note_activity(error, subscription.label)
                    if not isinstance(error, Exception):
                        raise
                    if self._forgives(subscription, error):
                        continue
                    if event not in MUST_ALL_HEAR:
                        raise
                    if failure is not None:
                        logger.error("%s failed too: %s: %s", subscription.label, type(error).__name__, error)
                    failure = failure or error
                else:
                    if answer is not None and answer is not control:
                        control.absorb(answer)
        finally:
            speaking.author, speaking.event = before
        if failure is not None:
            raise failure

    def _forgives(self, subscription: Subscription, error: Exception) -> bool:
        """Deal with a handler's exception by its policy; say whether the run goes on as if nothing had happened."""
        where = f"{subscription.label} failed after step {self.control.step}"
        if subscription.on_error == "raise":
            note(error, f"{where} (its on_error is 'raise').")
            return False
        remedy = "it is unsubscribed" if subscription.on_error == "quarantine" else "the run goes on"
        logger.warning("%s, %s: %s: %s", where, remedy, type(error).__name__, error, exc_info=error)
        if subscription.on_error == "quarantine":
            self.detach(subscription.owner_id)
        return True

    def _as_subscription(self, hearer: Any, channel: Channel) -> Subscription:
        if isinstance(hearer, Subscription):
            return hearer
        # Connected by a third party through blinker itself: called in blinker's way.
        owner_id = getattr(hearer, "__qualname__", type(hearer).__name__)
        params = (*channel.event.params,)

        def call(run: Any, extras: Any) -> Any:
            return hearer(run, **{name: extras[name] if name in extras else getattr(run, name) for name in params})

        return Subscription(channel.event, hearer, owner_id, hearer, call, Place(owner_id, Stage.DECIDE))

    # Showing.

    def describe(self) -> str:
        """Return the resolved order as text: each event that is heard, and its hearers by stage."""
        lines = []
        for name, channel in self.signals.items():
            plan = self.plan(name)
            if plan:
                lines.append(f"{name}: {channel.event.doc}")
                lines += [f"  {hearer.place.stage.name:8} {hearer.owner_id}" for hearer in plan]
        return "\n".join(lines) or "(nobody listens)"

    def __iter__(self) -> Iterator[str]:
        return iter(self.signals)


def note(error: BaseException, text: str) -> None:
    """Add a line under an exception's message, where Python can show it (3.11+)."""
    if hasattr(error, "add_note") and text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def _is_same(one: object, other: object) -> bool:
    return one is other or (inspect.ismethod(other) and one == other)  # each look at a method makes another object
