"""The channels of a bus: one blinker signal per event, with the handlers of the event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import blinker

from .catalog import Event
from .errors import SubscriptionError, nearest
from .flags import Flag
from .handlers import Call, Handler
from .ordering import Slot
from .policies import RAISE, Policy
from .subscribers import Ordered

FINISHES: dict[str, Flag] = {
    "on_log": "log",
    "on_evaluate": "evaluate",
    "on_save": "save",
    "on_epoch_begin": "epoch_stop",
}
"""Event -> the flag that becomes False before the handlers of the event run, as in transformers. At this event, the
requested work is complete."""


@dataclass(eq=False, slots=True)
class Subscription:
    """One handler of one subscriber for one event. A `Channel` stores the subscriptions of its event."""

    event: Event
    owner: object
    """The callback, or the subscribed function."""
    owner_id: str
    handler: Handler
    call: Call
    slot: Slot
    policy: Policy = RAISE
    """The action after an exception of the handler."""
    names: frozenset[str] = frozenset()
    """The parameters that the handler names."""
    key: tuple[str, str] = field(init=False)
    """The id of the owner and the name of the event."""

    def __post_init__(self) -> None:
        self.key = self.owner_id, self.event.name

    @property
    def label(self) -> str:
        """The name of the handler in messages: id of the subscriber and event, such as `Log.on_log_due`."""
        return f"{self.owner_id}.{self.event.name}"

    def __call__(self, sender: Any, **extras: Any) -> Any:
        """Run the handler. blinker calls this method if code uses `signal.send(run, ...)`."""
        return self.call(sender, extras)


class Channel(blinker.Signal):
    """A blinker signal for one event. It stores the handlers in the order of attachment, with strong references."""

    set_class = Ordered  # type: ignore[assignment]

    def __init__(self, event: Event) -> None:
        super().__init__(event.doc)
        self.event = event
        self.ordered: tuple[Subscription, ...] | None = None
        """The handlers in the order in which they run. None: the next announcement computes the order."""
        self.calls: tuple[Subscription, ...] | None = None
        """The handlers that an announcement calls: the result of the `Route` of the bus. None: the next announcement
        computes the result."""
        self.finishes: Flag | None = FINISHES.get(event.name)
        self._resting: list[Handler] = []

    def rest(self, callback: object, function: Callable[..., Any], rests: bool) -> None:
        """Set whether announcements skip a handler of this event.

        A callback calls this method in `on_setup`, to save time if its handler of a frequent event has nothing to do in
        the session.

        Args:
            callback: the callback.
            function: the handler in the class of the callback, such as `Progress.on_prediction_step`. If a subclass or
                the instance overrides this handler, this method has no effect: announcements call the overriding
                handler.
            rests: True to skip the handler, False to call the handler again.
        """
        handler = MethodType(function, callback)
        others = [other for other in self._resting if other != handler]
        self._resting, self.calls = [*others, handler] if rests else others, None

    def awake(self, handlers: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
        """Return the handlers that announcements do not skip. The method `rest` sets which handlers are skipped."""
        return tuple(each for each in handlers if each.handler not in self._resting)

    def connect(self, receiver: Any, sender: Any = blinker.ANY, weak: bool = False) -> Any:
        """Connect a receiver, by default with a strong reference.

        blinker's own default is a weak reference, which silently drops bound methods.
        """
        self.ordered = self.calls = None
        return super().connect(receiver, sender, weak=weak)

    def disconnect(self, receiver: Any, sender: Any = blinker.ANY) -> None:
        """Disconnect a receiver from a sender, by default from all senders."""
        self.ordered = self.calls = None
        super().disconnect(receiver, sender)


class Signals(dict[str, Channel]):
    """All channels by event name. An unknown name raises an error that suggests the nearest name."""

    def __missing__(self, event: str) -> Channel:
        raise SubscriptionError(f"Unknown event {event!r}{nearest(event, self)}")


Route = Callable[[str, tuple[Subscription, ...]], tuple[Subscription, ...]]
"""A function that receives an event and its ordered handlers. It returns the handlers that an announcement calls."""


def directly(event: str, handlers: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
    """Return all handlers. This is the default `Route` of a bus: an announcement calls all handlers of the event."""
    return handlers
