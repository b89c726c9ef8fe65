"""The event bus, which calls handlers in order and treats their exceptions as `on_error` of the callback says."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .activity import DEEPEST, endless, note_activity
from .catalog import ALL_HANDLERS_RUN, CATALOG, LAST_IN_FIRST_OUT, Event
from .channels import Channel, Route, Signals, Subscription, directly
from .closing import call_all
from .control import TrainerControl
from .custom_events import check_announced, check_event, own_events
from .errors import SubscriptionError, note
from .event_names import EventName
from .filters import filter_of, filtered, ids_in, number_in
from .handlers import Call, Handler, compile_handler, warn_of_deprecated
from .isolation import Isolation, refuse_thinning
from .ordering import Slot, resolve
from .policies import Budget, Policy, ending, policy_of
from .stages import ORDER_MARK, Order, Stage
from .subscribers import Attached, Subscriber, budget_for, checked_on_error, identity, inspect_subscriber, is_same
from .timeline import CALL, DONE, FULL, Timeline, now

logger = logging.getLogger(__name__)


OnError = str
"""The type of `on_error`, the action after an exception of a handler. `Callback.on_error` lists the values."""


@dataclass
class Handle:
    """The result of subscribing. Calling the handle, or leaving its `with` block, unsubscribes."""

    owner_id: str
    _undo: Callable[[], None] = field(repr=False)

    def __call__(self) -> None:
        self._undo()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self()

    def __getstate__(self) -> dict[str, Any]:
        return {"owner_id": self.owner_id, "_undo": bool}  # bool() does nothing: another process has no bus


class EventBus:
    """All events of one trainer, and the order of their handlers.

    `attach` subscribes a callback with `on_*` methods. `on` subscribes a plain function to one event. Both return a
    `Handle`. `announce` calls the handlers.

    Each event is a signal of the library blinker. Other code can connect a receiver: `signals[name].connect(receiver)`.
    The bus calls the receiver as `receiver(run, **values)` in the stage DECIDE.
    """

    def __init__(self, run: Any, control: TrainerControl) -> None:
        """Create a blinker signal for each event of the catalogue.

        Args:
            run: the run. Its attributes are the values of the parameters of handlers.
            control: has the flags. The bus stores the running handler in the control, as the author of flag writes.
        """
        self.run = run
        self.control = control
        self.signals: dict[str, Channel] = Signals((name, Channel(event)) for name, event in CATALOG.items())
        self._subscribers: dict[str, Subscriber] = {}
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._ids: set[str] = set()  # includes ids of detached callbacks: `before=` and `after=` may still name them
        self.named: frozenset[str] = frozenset()
        """The parameters that at least one handler names. The run does not keep outputs that no handler names."""
        self.isolation = Isolation(control, self._retire)
        """Records the failures of callbacks, and compares their times with their budgets."""
        self._watch: Callable[[Subscription], Subscription] | None = None
        self.route: Route = directly
        self.timeline = Timeline()
        """Where the time of a training goes, by part and by handler."""
        self.watchers: list[Callable[[str, Any], None]] = []
        """Functions that are called as `watcher(event, run)` for each announced event, even without handlers."""

    # Subscribing.

    def declare(self, event: Event) -> None:
        """Add a custom event. If an equal event exists already, do nothing.

        Raises:
            SubscriptionError: if another event has this name, or if the name is not a valid `on_` name.
        """
        known = self.signals[event.name].event if event.name in self.signals else None
        check_event(event, known)
        self.signals.setdefault(event.name, Channel(event))

    def declare_events_of(self, subscriber: object) -> None:
        """Add the custom events of a callback.

        `attach` also adds these events. If callbacks handle custom events of each other, call this method for all of
        these callbacks before you attach the first one.
        """
        for event in own_events(subscriber):
            self.declare(event)

    def attach(self, subscriber: object, optional: Collection[str] = (), open_ended: bool = False) -> Handle:
        """Subscribe every `on_*` method of a callback to the event of its name.

        Args:
            subscriber: the callback.
            optional: names of events. Invalid handlers of these events are skipped without an error.
            open_ended: whether handlers in the style of transformers may name parameters that the event does not pass.

        Raises:
            SubscriptionError: if a method matches no event or names an unknown parameter, if an annotation or a setting
                of the callback is wrong, if its id is in use, or if the callback is attached already.
        """
        self.declare_events_of(subscriber)
        record = inspect_subscriber(subscriber, self.signals)
        for other_id, other in self._subscribers.items():
            if other.callback is subscriber:
                raise SubscriptionError(f"{other_id} is already attached. Attach a second instance instead.")
        owner_id = identity(subscriber, record.wanted_id, self._subscribers)
        policy, budget = checked_on_error(subscriber, record.on_error, owner_id), budget_for(subscriber, owner_id)
        subscriptions: list[Subscription] = []
        for name, handler in record.handlers.items():
            event, label = self.signals[name].event, f"{owner_id}.{name}"
            try:
                call, named = compile_handler(handler, event, label, lenient=record.foreign, open_ended=open_ended)
            except SubscriptionError:
                if name in optional:
                    continue
                raise
            warn_of_deprecated(event, named, label)
            mark: Order = getattr(handler, ORDER_MARK, Order())
            stage = mark.stage if mark.stage is not None else record.stage
            slot = Slot(owner_id, stage, mark.before or record.before, mark.after or record.after)
            call = self._isolated(call, event, owner_id, policy, budget)
            subscriptions.append(Subscription(event, subscriber, owner_id, handler, call, slot, policy, named))
        if budget is not None and budget.remedy == "thin":
            refuse_thinning(owner_id, [(each.event, each.slot.stage) for each in subscriptions])
        return self._connect(owner_id, record, subscriptions)

    def on(
        self,
        event: EventName | str,
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
            event: the name of the event.
            function: called with the parameters that it names.
            every: call the function at every n-th step, epoch or announcement (`Event.clock` says which).
            once: call the function only at the n-th step, epoch or announcement.
            before: either a number n or ids of callbacks. A number: call the function only before the n-th step, epoch
                or announcement. Ids: call the function before the handlers of these callbacks.
            after: either a number n or ids of callbacks. A number: call the function only after the n-th step, epoch or
                announcement, and count `every` from n. Ids: call the function after the handlers of these callbacks.
            stage: the stage in which the function runs.
            on_error: the effect of an exception: `raise`, `warn` (log a warning), `quarantine` (log a warning and
                unsubscribe), `quarantine(after=3)` or `retry(3)`.
            id: the name in the ledger and in error messages. Default: the name of the function.

        Raises:
            SubscriptionError: for an unknown event, parameter or `on_error`, a wrong annotation, a taken id, or
                invalid numbers in `every`, `once`, `before` or `after`.
        """
        channel = self.signals[event]
        owner_id = identity(function, id, self._subscribers)
        call, named = compile_handler(function, channel.event, f"{owner_id} (at {event})")
        warn_of_deprecated(channel.event, named, owner_id)
        keep = filter_of(every, once, number_in(before), number_in(after))
        policy = policy_of(on_error, owner_id)
        slot = Slot(owner_id, stage, ids_in(before), ids_in(after))
        call = self._isolated(call, channel.event, owner_id, policy)
        due = filtered(call, keep, channel.event.clock) if keep is not None else call
        subscription = Subscription(channel.event, function, owner_id, function, due, slot, policy, named)
        record = Subscriber(function, {event: function}, stage)
        return self._connect(owner_id, record, [subscription])

    def _isolated(self, call: Call, event: Event, owner_id: str, policy: Policy, budget: Budget | None = None) -> Call:
        if policy.isolates:
            call = self.isolation.guarded(call, owner_id, policy)
        return call if budget is None else self.isolation.timed(call, event, owner_id, budget)

    def _connect(self, owner_id: str, record: Subscriber, subscriptions: list[Subscription]) -> Handle:
        self._ids.add(owner_id)
        self._subscribers[owner_id] = record
        self._subscriptions[owner_id] = subscriptions
        for subscription in subscriptions:
            self.signals[subscription.event.name].connect(subscription)
        self.named = self.named.union(*(subscription.names for subscription in subscriptions))

        this = weakref.ref(record)

        def undo() -> None:
            if self._subscribers.get(owner_id) is this():  # not a later callback with the same id
                self.detach(owner_id)

        return Handle(owner_id, undo)

    def detach(self, subscriber: object) -> None:
        """Unsubscribe a callback, given as the object or its id. Do nothing if the callback is not attached."""
        found = [owner_id for owner_id, record in self._subscribers.items() if is_same(record.callback, subscriber)]
        for owner_id in found or ([subscriber] if isinstance(subscriber, str) else []):
            self._subscribers.pop(owner_id, None)
            for subscription in self._subscriptions.pop(owner_id, ()):
                self.signals[subscription.event.name].disconnect(subscription)
        self.timeline.fold()  # the marks of the timeline refer to the subscriptions
        self.named = frozenset().union(*(each.names for left in self._subscriptions.values() for each in left))

    def _retire(self, owner_id: str) -> None:
        """Unsubscribe a callback and call its `on_close`. During `on_close` and `on_end`, only unsubscribe it."""
        closing = [each for each in self._subscriptions.get(owner_id, ()) if each.event.name == "on_close"]
        self.detach(owner_id)
        if closing and self.control.speaking.event not in LAST_IN_FIRST_OUT:
            self.call(closing, "on_close", self.run, {})

    def know(self, ids: Iterable[str]) -> None:
        """Accept `ids` in `before=` and `after=`, even if no callback with such an id is attached, as in a preview."""
        self._ids.update(ids)

    def reorder(self, ids: Iterable[str]) -> None:
        """Change the order of attachment of all subscribers, which is the order of handlers within a stage.

        Args:
            ids: the ids of all subscribers, in the new order.
        """
        self._subscribers = {owner_id: self._subscribers[owner_id] for owner_id in ids}
        for owner_id in self._subscribers:
            for subscription in self._subscriptions[owner_id]:
                channel = self.signals[subscription.event.name]
                channel.disconnect(subscription)
                channel.connect(subscription)

    @property
    def subscribers(self) -> dict[str, Any]:
        """All attached callbacks and functions by id, in the order of attachment."""
        return Attached({owner_id: record.callback for owner_id, record in self._subscribers.items()})

    def is_attached(self, owner_id: str) -> bool:
        """Return whether a callback or function with this id is attached."""
        return owner_id in self._subscribers

    def attributes_of(self, owner_id: str) -> dict[str, Any]:
        """Return the attributes of a callback at its attachment, before the run changed them: name -> value."""
        return self._subscribers[owner_id].attributes

    # Announcing.

    def reroute(self, route: Route) -> None:
        """Set the function that chooses the handlers of an announcement: `route(event, handlers)` returns them."""
        self.route = route
        for channel in self.signals.values():
            channel.calls = None

    def watch_calls(self, watch: Callable[[Subscription], Subscription]) -> None:
        """Replace each handler, also handlers attached later, by the result of `watch(handler)`. For debugging."""
        self._watch = watch
        for channel in self.signals.values():
            channel.ordered = channel.calls = None

    def has_handlers(self, event: EventName | str) -> bool:
        """Return whether `event` has any handler."""
        return bool(self.signals[event].receivers)

    hears = has_handlers
    """The former name of `has_handlers`."""

    def order_of(self, event: EventName | str) -> tuple[Subscription, ...]:
        """Return the handlers of `event`, in the order in which they run.

        Raises:
            SubscriptionError: if `before=` or `after=` name an unknown id, contradict the stages, or form a cycle.
        """
        channel = self.signals[event]
        if channel.ordered is None:
            found = [self._as_subscription(receiver, channel) for receiver in channel.receivers_for(self.run)]
            by_slot = {replace(each.slot, serial=serial): each for serial, each in enumerate(found)}
            resolved = resolve(list(by_slot), self._ids, event)
            ordered = tuple(by_slot[slot] for slot in resolved)
            if self._watch is not None:
                ordered = tuple(self._watch(each) for each in ordered)
            channel.ordered = ordered[::-1] if event in LAST_IN_FIRST_OUT else ordered
        return channel.ordered

    plan = order_of
    """The former name of `order_of`."""

    def resolve(self) -> None:
        """Resolve the order of every event now, so that an impossible order is an error before the run begins."""
        for name in self.signals:
            self.order_of(name)

    def announce(self, event: str, **extras: Any) -> None:
        """Call all handlers of `event`, in order.

        The bus ignores the return value of a handler, with one exception: if a handler returns a control, as in
        transformers, the flags that are raised on this control count as requests.

        If a handler fails, the attribute `on_error` of the callback decides. By default, the bus raises the error, with
        the name of the handler as a note. At `on_exception`, `on_close` and `on_end`, all other handlers run first.
        """
        channel = self.signals[event]
        calls = channel.calls
        if calls is None:
            calls = channel.calls = self.route(event, channel.awake(self.order_of(event)))
        control = self.control
        if control.serving and channel.finishes is not None:
            control.finish(channel.finishes)
        if self.watchers:
            for watch in self.watchers:
                watch(event, self.run)
        if calls:
            self.call(calls, event, self.run, extras)

    def announce_checked(self, event: str, values: Mapping[str, Any]) -> None:
        """Announce an event. If the event is custom, first check `values` with the function `check_announced`."""
        if event not in CATALOG:
            check_announced(self.signals[event].event, values, self.run)
        self.announce(event, **values)

    def call(self, ordered: Iterable[Subscription], event: str, run: Any, extras: Mapping[str, Any]) -> None:
        """Call handlers in the given order. For handlers that fail, see `announce`."""
        control, speaking, marks = self.control, self.control.speaking, self.timeline.marks
        before = speaking.author, speaking.event
        if speaking.depth >= DEEPEST:
            raise endless(event, speaking.author)
        speaking.depth += 1
        marks += (CALL, 0)
        try:
            if event in ALL_HANDLERS_RUN:
                call_all(tuple(ordered), run, extras, control, event, self._forgives)
                return
            for subscription in ordered:
                speaking.author, speaking.event = subscription.owner_id, event
                marks += (subscription, now())
                try:
                    answer = subscription.call(run, extras)
                except BaseException as error:
                    note_activity(error, subscription.label)
                    if not isinstance(error, Exception) or not self._forgives(subscription, error):
                        raise
                else:
                    if answer is not None and answer is not control:
                        control.absorb(answer)
        finally:
            speaking.author, speaking.event = before
            speaking.depth -= 1  # not the value from before, because other threads may announce at the same time
            marks += (DONE, now())
            if len(marks) > FULL:
                self.timeline.fold_steps()

    def _forgives(self, subscription: Subscription, error: Exception) -> bool:
        """Apply `on_error` of a callback to an exception of its handler. Return whether the run continues."""
        if self.isolation.forgives(subscription, error):
            return True
        if subscription.policy.action == "raise":
            note(error, ending(subscription.label, self.control.step, subscription.policy))
        return False

    def _as_subscription(self, receiver: Any, channel: Channel) -> Subscription:
        if isinstance(receiver, Subscription):
            return receiver
        # Code outside of trainbus connected this receiver through blinker.
        owner_id = getattr(receiver, "__qualname__", type(receiver).__name__)
        names = channel.event.param_names

        def call(run: Any, extras: Any) -> Any:
            return receiver(run, **{name: extras[name] if name in extras else getattr(run, name) for name in names})

        return Subscription(channel.event, receiver, owner_id, receiver, call, Slot(owner_id, Stage.DECIDE))

    # Showing.

    def describe(self) -> str:
        """Return the handler order as text: each event that has handlers, with their stages and ids."""
        lines = []
        for name, channel in self.signals.items():
            ordered = self.order_of(name)
            if ordered:
                lines.append(f"{name}: {channel.event.doc}")
                lines += [f"  {each.slot.stage.name:8} {each.owner_id}" for each in ordered]
        return "\n".join(lines) or "(no event has a handler)"

    def __iter__(self) -> Iterator[str]:
        return iter(self.signals)
