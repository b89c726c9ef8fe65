"""Call all handlers of `on_exception`, `on_close` or `on_end`, even if a handler fails or Ctrl-C arrives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from .activity import note_activity
from .control import TrainerControl

logger = logging.getLogger(__name__)


def call_all(
    subscriptions: Sequence[Any],
    run: Any,
    extras: Any,
    control: TrainerControl,
    event: str,
    forgives: Callable[[Any, Exception], bool],
) -> None:
    """Call every handler. Then raise the first error, and log the other errors.

    An error for which `forgives` returns True is neither raised nor logged here.

    Args:
        subscriptions: the handlers, in order.
        run: the run. Its attributes are the values of the parameters of handlers.
        extras: the values that only this announcement passes, by the name of the parameter.
        control: the flags. The function stores the running handler in the control. If a handler returns another
            control, as in transformers, the function requests the flags that are raised on the returned control.
        event: the name of the event.
        forgives: a function that returns whether the run continues after an exception of a handler.
    """
    failure: BaseException | None = None
    speaking, number = control.speaking, 0
    while number < len(subscriptions):
        try:
            while number < len(subscriptions):
                subscription = subscriptions[number]
                speaking.author, speaking.event = subscription.owner_id, event
                # One statement: an interrupt between the call and the count would call the handler again.
                answer, number = subscription.call(run, extras), number + 1
                if answer is not None and answer is not control:
                    control.absorb(answer)
        except BaseException as error:
            label = "An interrupt"
            if number < len(subscriptions) and _began(subscriptions[number].call, error):
                failed = subscriptions[number]
                number, label = number + 1, failed.label
                note_activity(error, label)
                if isinstance(error, Exception) and forgives(failed, error):
                    continue
            if failure is not None:
                logger.error("%s failed too: %s: %s", label, type(error).__name__, error)
            failure = failure or error
    if failure is not None:
        raise failure


def _began(function: Callable[..., Any], error: BaseException) -> bool:
    """Return whether a function had begun when `error` was raised; False if Ctrl-C came before the call."""
    inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
    code = getattr(function, "__code__", None)
    return code is None or (inner is not None and inner.tb_frame.f_code is code)
