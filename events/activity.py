"""The name of the current activity of each thread, for error reports.

Code that runs in every step assigns `run.activity.name`, which costs no function call. Other code uses the context
manager `with run.activity(SAVE):` or the decorator `@during(SAVE)`. When an exception leaves an activity or a handler,
the exception stores the name of the innermost activity or handler. `activity_of(error)` returns this name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from .errors import HandlerError

IDLE = ""
"""The name of the activity in the user's program, and in code between two activities."""

FETCH = "fetching batches"
FORWARD = "forward"
BACKWARD = "backward"
UPDATE = "the update"
EVALUATION = "an evaluation"
PREDICTION = "a prediction"
SAVE = "a save"
AWAIT_SAVE = "waiting for the write of a checkpoint"
CHECK_FOLDER = "checking the output folder"
LOG = "a log"
CHOOSE_CHECKPOINT = "choosing a checkpoint"
COMPARE_RANKS = "comparing arguments and callbacks"
AGREE = "agreeing on requests"

NESTED = 24
"""How often an activity may run inside of itself. An evaluation counts up to three times."""

DEEPEST = 64
"""The largest depth of nested announcements. An announcement is nested if a handler of another announcement makes it.
A few levels of evaluations that handlers start reach about 40. Python's recursion limit allows about 150."""

IN_STEP = frozenset({FETCH, FORWARD, BACKWARD, UPDATE})
"""Activities inside a step. An error report says "of step 5" for these, and "after step 4" for all other activities."""

_KEY = "trainbus_activity"
"""The key of the activity in an exception's `__dict__`. The code writes to the dict, because an exception class may
forbid `setattr`."""

P = ParamSpec("P")
R = TypeVar("R")


def _no_mark(name: str, begins: bool) -> None:
    """Do nothing: the default of `Activity.mark`, on threads that do not measure the time of activities."""


class Activity(threading.local):
    """The current activity of the engine.

    Each thread has its own activity, so a save on a background thread does not change the activity of the main thread.
    """

    name: str = IDLE
    mark: Callable[[str, bool], None] = staticmethod(_no_mark)
    """The function that measures the time of activities. Each `with` block calls `mark(name, True)` when the block
    begins, and `mark(name, False)` when it ends. Only the training thread sets another function than the default, which
    does nothing."""

    def __init__(self) -> None:
        """Create the list of the activities that are in progress, one list for each thread."""
        self._nested: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Set the activity for a `with` block, and restore the previous activity after the block.

        Raises:
            HandlerError: if the activity runs inside of itself more than `NESTED` times. Without this error, a handler
                that calls itself would repeat evaluations until Python's limit of recursion.
        """
        if self._nested.count(name) >= NESTED:
            raise HandlerError(_recursion(name))
        outer, self.name = self.name, name
        self._nested.append(name)
        self.mark(name, True)
        try:
            yield
        except BaseException as error:
            note_activity(error, self.name)
            raise
        finally:
            self.mark(name, False)
            self._nested.pop()
            self.name = outer

    def fail(self, error: BaseException) -> None:
        """Store the current activity in an exception that ends the session. Then set the activity to `IDLE`."""
        note_activity(error, self.name)
        self.name = IDLE


def _recursion(name: str) -> str:
    return (
        f"{name[:1].upper()}{name[1:]} runs inside of itself again and again. A handler, an overridden method or a "
        "metric function calls a method of the Trainer that calls it again, such as `evaluate()` in a handler of "
        "`on_evaluate`. Return from this function without the call if its own call is in progress, or call the method "
        "in another event, such as `on_step_end`."
    )


def endless(event: str, author: str) -> HandlerError:
    """Return the error for announcements that are nested too deeply.

    Args:
        event: the event of the innermost announcement.
        author: the id of the callback that announces this event.
    """
    return HandlerError(
        f"{author} announces {event!r} inside of {DEEPEST} other announcements. A handler announces its own event, or "
        "handlers announce the events of each other, so the announcements never end. Announce another event, or return "
        "from the handler if its own announcement is in progress. To log values in a handler of `on_log`, write them "
        "into `logs`."
    )


class HasActivity(Protocol):
    """An object with a current activity, such as `Run`."""

    @property
    def activity(self) -> Activity:
        """The current activity."""
        ...


RunT = TypeVar("RunT", bound=HasActivity)


def during(name: str) -> Callable[[Callable[Concatenate[RunT, P], R]], Callable[Concatenate[RunT, P], R]]:
    """Return a decorator that sets the activity `name` while the decorated function runs.

    The first argument of the decorated function is the run.
    """

    def decorate(function: Callable[Concatenate[RunT, P], R]) -> Callable[Concatenate[RunT, P], R]:
        @wraps(function)
        def call(run: RunT, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with run.activity(name):
                return function(run, *args, **kwargs)

        return call

    return decorate


def note_activity(error: BaseException, name: str) -> None:
    """Store the activity `name` in an exception.

    The function does nothing if `name` is empty, or if the exception or one of its causes (`__cause__`) already stores
    an activity. The activity that was stored first is the innermost.
    """
    if name and not activity_of(error):
        error.__dict__[_KEY] = name


def activity_of(error: BaseException | None) -> str:
    """Return the activity that an exception or one of its causes stores; an empty text if there is none."""
    while error is not None:
        if name := error.__dict__.get(_KEY, ""):
            return str(name)
        error = error.__cause__
    return IDLE
