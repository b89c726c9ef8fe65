"""The name of the current activity of a process, for error reports.

Code that runs in every step assigns `run.activity.name`, which costs no function call. Other code uses the context
manager `with run.activity(SAVE):` or the decorator `@during(SAVE)`. When an exception leaves an activity or a handler,
the name of the innermost activity or handler is recorded on the exception. `activity_of(error)` returns this name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

IDLE = ""
"""The name while no activity runs: in the user's program, or in code between two activities."""

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

IN_STEP = frozenset({FETCH, FORWARD, BACKWARD, UPDATE})
"""Activities inside a step. An error report says "of step 5" for these, and "after step 4" for all other activities."""

_KEY = "trainbus_activity"
"""The key of the activity in an exception's `__dict__`. The dict is written directly, because an exception class may
forbid `setattr`."""

P = ParamSpec("P")
R = TypeVar("R")


def _no_mark(name: str, begins: bool) -> None:
    """Do nothing. `Activity.mark` is this function on all threads that do not measure the time of activities."""


class Activity(threading.local):
    """The current activity of the engine.

    Each thread has its own activity, so a save on a background thread does not change the activity of the main thread.
    """

    name: str = IDLE
    mark: Callable[[str, bool], None] = staticmethod(_no_mark)
    """A function that is called as `mark(name, begins)` when a `with` block begins and when it ends. Only the thread
    that trains sets another function than the default, which does nothing."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Set the activity for a `with` block, and restore the previous activity after the block."""
        outer, self.name = self.name, name
        self.mark(name, True)
        try:
            yield
        except BaseException as error:
            note_activity(error, self.name)
            raise
        finally:
            self.mark(name, False)
            self.name = outer

    def fail(self, error: BaseException) -> None:
        """Record the current activity on an exception that ends the session. Then set the activity to `IDLE`."""
        note_activity(error, self.name)
        self.name = IDLE


class HasActivity(Protocol):
    """An object with a current activity, such as `Run`."""

    @property
    def activity(self) -> Activity:
        """The current activity."""
        ...


RunT = TypeVar("RunT", bound=HasActivity)


def during(name: str) -> Callable[[Callable[Concatenate[RunT, P], R]], Callable[Concatenate[RunT, P], R]]:
    """Return a decorator for functions with the run as first argument.

    The activity is `name` while the function runs.
    """

    def decorate(function: Callable[Concatenate[RunT, P], R]) -> Callable[Concatenate[RunT, P], R]:
        @wraps(function)
        def call(run: RunT, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with run.activity(name):
                return function(run, *args, **kwargs)

        return call

    return decorate


def note_activity(error: BaseException, name: str) -> None:
    """Record an activity on an exception.

    If the exception or one of its causes (`__cause__`) already has an activity, that activity stays, because it is the
    innermost.
    """
    if name and not activity_of(error):
        error.__dict__[_KEY] = name


def activity_of(error: BaseException | None) -> str:
    """Return the activity that is recorded on an exception or on one of its causes; empty if there is none."""
    while error is not None:
        if name := error.__dict__.get(_KEY, ""):
            return str(name)
        error = error.__cause__
    return IDLE
