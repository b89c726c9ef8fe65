"""CallbackHandler: an object with the methods of transformers' `CallbackHandler`, for the callbacks of a trainer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ...events.catalog import CATALOG
from ...events.channels import Subscription
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, nearest
from ...events.handlers import is_called_as_transformers_does
from ...events.ordering import Slot
from ...events.stages import Stage
from ..run import Run
from .attached_callbacks import AttachedCallbacks, HasCallbacks

Call = Callable[..., Any]

CARRIED = {"on_log": "logs", "on_evaluate": "metrics", "on_predict": "metrics"}
"""Event -> the parameter after args, state and control in the method of this event, as in transformers."""

_SHARED = tuple(event.name for event in CATALOG.values() if event.origin == "transformers")
_FIELDS = ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
"""The values that transformers' callback handler passes to every handler."""

_CALL_EVENT = "call_event"
_AUTHOR = "callback_handler"


class CallbackHandler:
    """The callbacks of a trainer, for code written for transformers.

    `callback_handler.on_log(args, state, control, logs)` announces an event. A program may replace `call_event`, or one
    of the methods of the sixteen events of transformers:

        call_event = trainer.callback_handler.call_event

        def with_trainer(event, args, state, control, **kwargs):
            return call_event(event, args, state, control, trainer=trainer, **kwargs)

        trainer.callback_handler.call_event = with_trainer

    An instance of a subclass of transformers' `CallbackHandler` may also be assigned to `trainer.callback_handler`.

    A function that replaces a method must call the handlers of the callbacks in the attribute `callbacks`. While the
    function runs, this list has only the callbacks whose handler is in the stage DECIDE and takes
    `(args, state, control, **kwargs)`. The bus calls the handlers of all other callbacks.

    A program may also set the attributes that handlers receive, such as `model`, and add new attributes. A program
    cannot replace other methods of this object.
    """

    trainer: HasCallbacks
    """The trainer whose callbacks are called."""
    model: Any
    processing_class: Any
    optimizer: Any
    lr_scheduler: Any
    train_dataloader: Any
    eval_dataloader: Any

    def __init__(self, trainer: HasCallbacks) -> None:
        """Create the callback handler of a trainer."""
        self.__dict__["trainer"] = trainer
        self._replaced: dict[str, Call] = {}
        self._current: _Routed | None = None
        self._given: Any = None

    @property
    def callbacks(self) -> MutableSequence[Any]:
        """All callbacks and subscribed functions, in order of attachment.

        A change of the list attaches, detaches or reorders callbacks.

        The program may replace a method by its own function, as in `callback_handler.on_log = my_log`. While `my_log`
        runs, the list has only the callbacks in the stage DECIDE that handle `on_log` in the style of transformers.
        `my_log` itself must call these callbacks.
        """
        return AttachedCallbacks(self.trainer) if self._current is None else _Authors(self._current, self.trainer.run)

    @callbacks.setter
    def callbacks(self, callbacks: list[Any]) -> None:
        wanted = list(callbacks)
        for callback in list(self.trainer.callbacks.values()):
            if not any(callback is other for other in wanted):
                self.trainer.bus.detach(callback)
        ids = {id(callback): owner_id for owner_id, callback in self.trainer.callbacks.items()}
        order = [ids.get(id(each)) or self.trainer.add_callback(each).owner_id for each in wanted]
        self.trainer.bus.reorder(dict.fromkeys(order))

    @property
    def callback_list(self) -> str:
        """The names of the classes of all callbacks, one per line."""
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def call_through(self, handler: Any) -> None:
        """Use `handler` to call the trainer's callbacks in each event of transformers, from now on.

        The assignment `trainer.callback_handler = handler` calls this method. The method attaches the callbacks of
        `handler` that are not attached yet. `trainer.callback_handler` then also has the attributes of `handler`.

        Args:
            handler: the other callback handler, such as an object of a subclass of transformers' `CallbackHandler`.
        """
        if handler is self:
            return
        if not hasattr(handler, "callbacks"):
            raise ArgumentError(
                f"`trainer.callback_handler` cannot be {handler!r}. Set an object of a subclass of transformers' "
                "`CallbackHandler`."
            )
        for callback in handler.callbacks:
            if not any(callback is other for other in self.trainer.callbacks.values()):
                self.trainer.add_callback(callback)
        handler.callbacks = AttachedCallbacks(self.trainer)
        self._given = handler
        self._replaced = {event: functools.partial(self._call_given, event) for event in _SHARED}
        self.trainer.bus.reroute(self._route)

    def _call_given(self, event: str, *given: Any, **named: Any) -> Any:
        handler = self._given
        vars(handler).update({name: getattr(self, name) for name in _FIELDS})
        before, handler.callbacks = handler.callbacks, self.callbacks
        try:
            return getattr(handler, event)(*given, **named)
        finally:
            handler.callbacks = before

    def add_callback(self, callback: Any) -> None:
        """Attach a callback. For a class, attach a new instance of the class."""
        self.trainer.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Detach a callback, or the first callback of a class. Return the detached callback; None if there is none."""
        return self.trainer.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Detach a callback. Pass the callback, its id, or its class.

        For a class, detach the first callback of this class, if there is one.

        Raises:
            SubscriptionError: for a callback or an id that is not attached.
        """
        self.trainer.remove_callback(callback)

    @property
    def replaces_calls(self) -> bool:
        """Whether a program replaced a method of this object, or assigned another callback handler to the trainer.

        The replacement may pass more values to handlers than the event passes. If True, `Trainer.add_callback`
        therefore accepts handlers in the style of transformers that have parameters for such values.
        """
        return bool(self._replaced)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        If `name` is `call_event` or an event of transformers, such as `on_log`, the function `value` replaces the
        method `name`. Other methods, and events that only trainbus has, cannot be replaced.

        Raises:
            ArgumentError: if the method `name` cannot be replaced, or if its new value is not a function.
        """
        if name == _CALL_EVENT or name in _SHARED:
            if not callable(value):
                raise ArgumentError(f"`callback_handler.{name}` is set to {value!r}. Set a function.")
            self._replaced[name] = value
            self.trainer.bus.reroute(self._route)
            return
        if name in CATALOG or (callable(getattr(type(self), name, None))):
            raise ArgumentError(
                f"`callback_handler.{name}` cannot be replaced. `call_event` and the methods of the events of "
                f"transformers can: {', '.join(_SHARED)}."
            )
        object.__setattr__(self, name, value)
        if name in _FIELDS:
            self.trainer.bus.reroute(self._route)

    def __getattr__(self, name: str) -> Any:
        if name == _CALL_EVENT:
            return functools.partial(self._at_call_event, self._replaced.get(name, self._call_handlers))
        if name in _FIELDS:
            return getattr(self.trainer.run, name)
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("on_") and name in self.trainer.bus.signals:
            through = functools.partial(self._call_through, name)
            return functools.partial(self._at_event, name, self._replaced.get(name, through))
        if self._given is not None:
            return getattr(self._given, name)
        raise AttributeError(
            f"The callback handler has no {name!r}{nearest(name, [_CALL_EVENT, *self.trainer.bus.signals])} "
            "It has one method per event, named `on_...`."
        )

    # As in transformers, the method of an event calls `call_event`, and `call_event` calls the callbacks.

    def _at_event(self, event: str, work: Call, args: Any, state: Any, control: Any, *more: Any, **named: Any) -> Any:
        if self._calls(event):
            return work(args, state, control, *more, **named)
        return self._announce(event, *more, **named)

    def _call_through(self, event: str, args: Any, state: Any, control: Any, *more: Any, **named: Any) -> Any:
        named.update(zip((CARRIED.get(event, ""),), more))
        return self.call_event(event, args, state, control, **named)

    def _at_call_event(self, work: Call, event: str, args: Any, state: Any, control: Any, **named: Any) -> Any:
        if self._calls(event):
            return work(event, args, state, control, **named)
        if event in self.trainer.bus.signals:
            return self._announce(event, **named)
        return self._call_by_name(event, args, state, control, **named)

    def _calls(self, event: str) -> bool:
        """Return whether the bus is calling this object for `event`.

        If True, the method of the event, such as `on_log`, calls the handlers in `self._current.handlers`. The bus does
        not call these handlers itself. If False, the method makes the bus call all handlers of the event.
        """
        return self._current is not None and self._current.event == event

    def _announce(self, event: str, *more: Any, **named: Any) -> TrainerControl:
        run, carried = self.trainer.run, CARRIED.get(event, "")
        if event == "on_save" and self.trainer._take_announced_save():
            return run.control
        named.update(zip((carried,), more))
        if carried in named:
            value = named.pop(carried)
            setattr(run, carried, value)
            if event == "on_evaluate":
                self.trainer._note_metrics(value)
        with self._leaving():
            run.announce(event, **named)
        return run.control

    def _call_handlers(self, event: str, args: Any, state: Any, control: Any, **named: Any) -> TrainerControl:
        """Call the handlers of the event that the bus announces now. Return the run's control.

        The handlers receive `args`, `state`, `control` and `named` in place of the values of the run.
        """
        run, handlers = self.trainer.run, () if self._current is None else self._current.handlers
        with self._leaving():
            self.trainer.bus.call(handlers, event, _Given(run, args, state, control), self._shown(named))
        return run.control

    def _call_by_name(self, event: str, args: Any, state: Any, control: Any, **named: Any) -> Any:
        """Call the method named `event` of each callback that has such a method.

        `call_event` calls this method for a name that is not an event of the bus.

        Returns:
            The last value other than None that a callback returned; `control` if there is none.

        Raises:
            AttributeError: if no callback has such a method.
        """
        having = [each for each in self.trainer.callbacks.values() if callable(getattr(each, event, None))]
        if not having:
            raise AttributeError(f"No callback has a method {event!r}{nearest(event, self.trainer.bus.signals)}")
        values = self._shown({name: getattr(self, name) for name in _FIELDS} | named)
        for callback in having:
            answer = getattr(callback, event)(args, state, control, **values)
            control = control if answer is None else answer
        return control

    def _shown(self, named: dict[str, Any]) -> dict[str, Any]:
        """Return the values for handlers: `named`, and attributes such as `model` that a program set on this object.

        Args:
            named: the values that the program passes in this call. In the result, these values replace attributes of
                the same name.
        """
        return {**{name: vars(self)[name] for name in self._fields_set()}, **named}

    def _fields_set(self) -> list[str]:
        return [name for name in _FIELDS if name in vars(self)]

    # The route of the bus.

    def _route(self, event: str, ordered: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
        """Return the subscriptions that the bus calls for an event. `ordered` has all subscriptions of the event.

        A program may replace `call_event` or the method of the event on this object, or set an attribute of `_FIELDS`,
        such as `model`. Without such a change, or if transformers does not have the event, return `ordered`.

        After such a change, this object itself calls the handlers that are in the stage DECIDE and take
        `(args, state, control, **kwargs)`. The result has one new subscription in place of these handlers. The new
        subscription calls this object.
        """
        changed = {event, _CALL_EVENT} & self._replaced.keys() or self._fields_set()
        if event not in _SHARED or not changed:
            return ordered
        handlers = tuple(
            each
            for each in ordered
            if each.slot.stage is Stage.DECIDE and is_called_as_transformers_does(each.handler, each.event)
        )
        place = ordered.index(handlers[0]) if handlers else sum(each.slot.stage <= Stage.DECIDE for each in ordered)
        routed = _Routed(self, event, handlers)
        first = tuple(each for each in ordered[:place] if each not in handlers)
        rest = tuple(each for each in ordered[place:] if each not in handlers)
        return (*first, routed.subscription, *rest)

    @contextmanager
    def _calling(self, routed: _Routed | None) -> Iterator[None]:
        before, self._current = self._current, routed
        try:
            yield
        finally:
            self._current = before

    def _leaving(self) -> Any:
        """Return a context in which each method of an event, such as `on_log`, announces this event through the bus."""
        return self._calling(None)


@dataclass(eq=False)
class _Routed:
    """An event, and the handlers of this event that a `CallbackHandler` calls instead of the bus."""

    owner: CallbackHandler
    event: str
    handlers: tuple[Subscription, ...]

    @property
    def subscription(self) -> Subscription:
        """The subscription that calls the callback handler, in place of the subscriptions in `self.handlers`."""
        slot = replace(self.handlers[0].slot, owner_id=_AUTHOR) if self.handlers else Slot(_AUTHOR, Stage.DECIDE)
        return Subscription(CATALOG[self.event], self.owner, _AUTHOR, self._call, self._call, slot)

    def _call(self, run: Any, extras: Any) -> Any:
        carried = (getattr(run, CARRIED[self.event]),) if self.event in CARRIED else ()
        with self.owner._calling(self):
            return getattr(self.owner, self.event)(run.args, run.state, run.control, *carried, **extras)


class _Given:
    """The run with other `args`, `state` and `control`: the values that a program passed to `call_event`."""

    def __init__(self, run: Run, *given: Any) -> None:
        self._run = run
        self.args, self.state, self.control = given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


class _Authors(list[Any]):
    """The list `callback_handler.callbacks` for a program that replaces a method, such as `callback_handler.on_log`.

    The program's new method loops over the list and calls the callbacks. In each round of the loop, the ledger names
    the current callback as the author of flag writes.
    """

    def __init__(self, routed: _Routed, run: Run) -> None:
        super().__init__(each.owner for each in routed.handlers)
        self._ids = [each.owner_id for each in routed.handlers]
        self._speaking = run.control.speaking

    def __iter__(self) -> Iterator[Any]:
        for owner_id, callback in zip(self._ids, super().__iter__()):
            self._speaking.author = owner_id
            yield callback
