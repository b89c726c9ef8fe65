"""Short tracebacks: a `TrainbusError` shows only the user's lines and the line that raised the error.

Frames of trainbus, torch, contextlib and functools are left out.
"""

from __future__ import annotations

import functools
import logging
import os
import types
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ...events.errors import TrainbusError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

VARIABLE = "TRAINBUS_FULL_TRACEBACKS"
"""The environment variable that turns shortening off if it has any value except 0."""

_INTERNAL = (__name__.partition(".")[0], "torch", "contextlib", "functools")
"""The packages whose frames a short traceback leaves out. The innermost frame stays in any case."""


def short_tracebacks(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public method, so that a `TrainbusError` from it has a short traceback. See `shortened`.

    The tracebacks of the causes of the error become short too. The full traceback is logged at level DEBUG. The
    environment variable `TRAINBUS_FULL_TRACEBACKS=1` turns shortening off. Errors of other classes keep their full
    traceback.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except TrainbusError as error:
            if os.environ.get(VARIABLE, "0") != "0":
                raise
            logger.debug("The whole traceback of the error", exc_info=error)
            for each in _chain(error):
                each.__traceback__ = shortened(each.__traceback__)
            raise error.with_traceback(error.__traceback__)  # noqa: B904 # its cause stays

    return call


def shortened(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without the frames of trainbus, torch, contextlib and functools.

    The innermost frame, which raised the error, stays in any case.
    """
    frames = []
    while traceback is not None:
        package = str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _INTERNAL or traceback.tb_next is None:
            frames.append(traceback)
        traceback = traceback.tb_next
    short: types.TracebackType | None = None
    for kept in reversed(frames):
        short = types.TracebackType(short, kept.tb_frame, kept.tb_lasti, kept.tb_lineno)
    return short


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and the causes of the error that Python prints with its traceback."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ if error.__cause__ is not None or error.__suppress_context__ else error.__context__
