"""The signals of a bus: one signal per event, with its handlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import blinker

from .catalog import Event
from .control import Flag
from .errors import SubscriptionError, nearest
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
"""Event -> a flag. The flag becomes False before the event is announced, because the requested work is done. This is
the same as in transformers."""


@dataclass(eq=False, slots=True)
class Subscription:
    """One handler of one subscriber for one event. A `Channel` holds the subscriptions of its event."""

    event: Event
    owner: object
    """The callback, or the subscribed function."""
    owner_id: str
    handler: Handler
    call: Call
    slot: Slot
    policy: Policy = RAISE
    """What an exception of the handler does."""
    names: frozenset[str] = frozenset()
    """The parameters that the handler names."""
    key: tuple[str, str] = field(init=False)
    """The id of the owner and the name of the event."""

    def __post_init__(self) -> None:
        self.key = self.owner_id, self.event.name

    @property
    def label(self) -> str:
        """The name of the handler in messages: `<id>.<event>`."""
        return f"{self.owner_id}.{self.event.name}"

    def __call__(self, sender: Any, **extras: Any) -> Any:
        """Run the handler if code calls `signal.send(run, ...)` of blinker directly."""
        return self.call(sender, extras)


class Channel(blinker.Signal):
    """A blinker signal for one event. It holds the handlers in the order of attaching, with strong references."""

    set_class = Ordered  # type: ignore[assignment]

    def __init__(self, event: Event) -> None:
        super().__init__(event.doc)
        self.event = event
        self.ordered: tuple[Subscription, ...] | None = None
        """The handlers in the order in which they run. None after a handler was added or removed: the next announcement
        computes the order."""
        self.calls: tuple[Subscription, ...] | None = None
        """The handlers that an announcement calls: the result of the `Route` of the bus. None after a handler was added
        or removed."""
        self.finishes: Flag | None = FINISHES.get(event.name)
        self._resting: list[Handler] = []

    def rest(self, callback: object, function: Callable[..., Any], rests: bool) -> None:
        """Leave out a handler in announcements while `rests` is True.

        A callback calls this method in `on_setup` if its handler of a frequent event has nothing to do in the session.

        Args:
            callback: the callback.
            function: the handler in the class of the callback, such as `Progress.on_prediction_step`. If a subclass or
                the instance has another handler, this other handler never rests.
            rests: whether the handler has nothing to do.
        """
        handler = MethodType(function, callback)
        others = [other for other in self._resting if other != handler]
        self._resting, self.calls = [*others, handler] if rests else others, None

    def awake(self, handlers: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
        """Return the handlers without those that rest."""
        return tuple(each for each in handlers if each.handler not in self._resting)

    def connect(self, receiver: Any, sender: Any = blinker.ANY, weak: bool = False) -> Any:
        """Connect a receiver, by default with a strong reference.

        blinker's own default is a weak reference, which silently drops bound methods.
        """
        self.ordered = self.calls = None
        return super().connect(receiver, sender, weak=weak)

    def disconnect(self, receiver: Any, sender: Any = blinker.ANY) -> None:
        """Disconnect a receiver."""
        self.ordered = self.calls = None
        super().disconnect(receiver, sender)


class Signals(dict[str, Channel]):
    """All channels by event name. An unknown name raises an error that suggests the nearest name."""

    def __missing__(self, event: str) -> Channel:
        raise SubscriptionError(f"Unknown event {event!r}{nearest(event, self)}")


Route = Callable[[str, tuple[Subscription, ...]], tuple[Subscription, ...]]
"""A function from an event and its ordered handlers to the handlers that an announcement calls."""


def directly(event: str, handlers: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
    """Return the handlers unchanged. As a `Route`, this lets an announcement call all handlers of the event."""
    return handlers
