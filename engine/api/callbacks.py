"""The Trainer's methods for callbacks: subscribe, add, remove, describe."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from ...events.bus import EventBus, Handle
from ...events.callback import Callback
from ...events.channels import Channel
from ...events.composition import describe_capabilities, refuse_conflicts
from ...events.errors import SubscriptionError, TrainbusError, nearest
from ...events.isolation import CallbackFailures
from ...events.keywords import checked_keywords, refuse_unknown
from ..arguments.plugins.build import written
from ..arguments.plugins.names import refuse_texts
from ..checkpoint.callback_states import ResumeReport, owner_of
from ..loss.loss_module import LossModule
from .base import TrainerBase
from .callback_handler import CallbackHandler
from .hf_compat import make_output_folder

logger = logging.getLogger(__name__)

_FILTERS = [name for name in inspect.signature(EventBus.on).parameters if name not in ("self", "event", "function")]
"""The filters that `on` takes."""


class CallbackMethods(TrainerBase):
    """Adds, removes and lists callbacks."""

    _pop_class: Callable[[EventBus, type], Any]
    _functions: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]]
    _callback_handler: CallbackHandler
    _twins: dict[tuple[type, str], list[str]]
    """Class and settings of callbacks -> the ids of up to three callbacks with this class and these settings."""

    @property
    def signals(self) -> dict[str, Channel]:
        """The blinker signal of each event, by event name: `trainer.signals["on_log"].connect(receiver)`."""
        return self.bus.signals

    @property
    def callback_handler(self) -> CallbackHandler:
        """The callback handler. It has one method per event, which calls the handlers of this event."""
        return self._callback_handler

    @callback_handler.setter
    def callback_handler(self, handler: Any) -> None:
        self._callback_handler.call_through(handler)

    @property
    def callbacks(self) -> dict[str, Any]:
        """All callbacks and subscribed functions by id, in order of attachment."""
        return self.bus.subscribers

    plugins: list[str]
    """One line for each attached plugin, and one for each plugin that a setting such as `no:NAME` leaves out."""

    def callbacks_as_config(self) -> list[str]:
        """Return the attached callbacks as texts, for the argument `callbacks` and for configuration files.

        Functions that `on` subscribed are left out. The callback that the Trainer adds for a loss module is also left
        out.

        Raises:
            ArgumentError: if an option has a value that cannot be written as text, such as a lambda or a dataset. The
                error lists all such options.
        """
        functions = self.subscribed_functions
        return written(
            callback
            for owner_id, callback in self.bus.subscribers.items()
            if owner_id not in functions and not isinstance(callback, LossModule)
        )

    @property
    def resume_report(self) -> ResumeReport:
        """What the last resume did with each callback state.

        The report lists states as `restored`, `migrated` or `orphaned` (no callback for the state). It lists callbacks
        without a saved state as `new`.
        """
        return self.run.callback_states.report

    @property
    def failures(self) -> dict[str, CallbackFailures]:
        """The callbacks that failed or exceeded their time budget in the last training, by id."""
        return {owner_id: record for owner_id, record in self.bus.isolation.failures.items() if record.is_reported}

    @property
    def wandb(self) -> Any:
        """The open run of wandb, for `trainer.wandb.log(...)`; None if wandb has no open run in this process."""
        found = (callback for callback in self.callbacks.values() if getattr(callback, "service", None) == "wandb")
        return getattr(next(found, None), "live", None)

    def on(self, event: str, function: Callable[..., Any] | None = None, **filters: Any) -> Any:
        """Subscribe a plain function to an event. Return a handle; without a function, return a decorator.

        `handle = trainer.on("on_log", function)` subscribes, and `handle()` unsubscribes. A decorated function has the
        handle as its attribute `handle`:

            @trainer.on("on_step_end", every=100)
            def note(state, grad_norm): ...

        Args:
            event: the event's name.
            function: the function. It receives the values of the event that its parameters name.
            **filters: `every=`, `once=`, `before=`, `after=`, `stage=`, `on_error=`, `id=`; see `EventBus.on`.
        """
        refuse_unknown("on()", filters, _FILTERS)
        if function is not None:
            handle = self.bus.on(event, function, **filters)
            self._functions[handle.owner_id] = (event, function, filters)
            return handle

        def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
            decorated.handle = self.on(event, decorated, **filters)  # type: ignore[attr-defined]
            return decorated

        return decorate

    @property
    def subscribed_functions(self) -> dict[str, tuple[str, Callable[..., Any], dict[str, Any]]]:
        """The subscriptions that `on` made and that still exist. The keys are the ids of the subscribers.

        Each value has the event, the function and the filters that were passed to `on`.
        """
        return {owner_id: said for owner_id, said in self._functions.items() if owner_id in self.bus.subscribers}

    @checked_keywords
    def add_callback(self, callback: Any) -> Handle:
        """Attach a callback; for a class, a new instance of the class. Return a handle that detaches the callback.

        Raises:
            SubscriptionError: if `callback` is not a callback, or if its `before=` or `after=` cannot be satisfied.
            ArgumentError: if `callback` conflicts with a callback that is already attached.

        If the method raises an error, it does not attach the callback.
        """
        refuse_texts([callback])
        attached = callback() if isinstance(callback, type) else callback
        # A callback of transformers may call its own `on_init_end` with values that the event does not pass.
        handle = self.bus.attach(attached, optional=("on_init_end",), open_ended=self.callback_handler.replaces_calls)
        self._warn_of_twin(attached, handle.owner_id)
        try:
            self.bus.resolve()
            refuse_conflicts(self.bus.subscribers.values())
        except TrainbusError:
            handle()
            raise
        make_output_folder(self.args, self.bus)
        if self.is_in_train:
            self.run.callback_states.load_late(handle.owner_id)
        return handle

    def _warn_of_twin(self, callback: Any, owner_id: str) -> None:
        """Warn if exactly one other attached callback has the same class and settings.

        A callback with a `variant`, which is the name of an additional instance, is not compared.

        Args:
            callback: the callback that was just attached.
            owner_id: the id of this callback.
        """
        if isinstance(callback, Callback) and callback.variant:
            return
        settings = owner_of(callback, self.bus.attributes_of(owner_id))["settings"]
        twins = self._twins.setdefault((type(callback), repr(sorted(settings.items()))), [])
        twins[:] = filter(self.bus.is_attached, twins[:2])
        twins.append(owner_id)
        if len(twins) == 2:
            logger.warning(
                "Two callbacks of the class %s are attached, with %s. Both of them run. Remove one, "
                "unless that is what you want.",
                type(callback).__name__,
                "equal settings" if settings else "settings that cannot be compared",
            )

    @checked_keywords
    def pop_callback(self, callback: Any) -> Any:
        """Detach a callback, or the first callback of a class. Return the detached callback; None if there is none."""
        if isinstance(callback, type):
            return self._pop_class(self.bus, callback)
        for owner_id, attached in self.bus.subscribers.items():
            if attached is callback:
                self.bus.detach(owner_id)
                return attached
        return None

    @checked_keywords
    def remove_callback(self, callback: Any) -> None:
        """Detach a callback. Pass the callback, its id, or its class.

        For a class, detach the first callback of this class. Do nothing if there is no callback of the class.

        Raises:
            SubscriptionError: for a callback or an id that is not attached.
        """
        if isinstance(callback, str) and callback in self.bus.subscribers:
            self.bus.detach(callback)
        elif isinstance(callback, str) or (self.pop_callback(callback) is None and not isinstance(callback, type)):
            hint = nearest(callback, self.bus.subscribers) if isinstance(callback, str) else "."
            attached = ", ".join(self.bus.subscribers)
            raise SubscriptionError(
                f"The callback {callback!r} is not attached, so it cannot be removed{hint} Attached: {attached}."
            )

    def describe(self) -> str:
        """Return a text that lists every callback, and the handlers of each event in the order in which they run."""
        lines = [f"{owner_id} = {callback!r}" for owner_id, callback in self.bus.subscribers.items()]
        parts = ["Callbacks, in order of attachment:\n  " + "\n  ".join(lines)]
        parts += [describe_capabilities(self.bus.subscribers), self.bus.describe()]
        return "\n\n".join(filter(None, parts))
