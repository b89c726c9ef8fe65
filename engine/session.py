"""Sessions: a session closes its resources at its end, and then raises the error that ended it, if there is one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ..events.flags import FLAGS
from .distributed.failures import failure_monitor
from .loss.index_errors import indices_explained
from .run import Run
from .seams import Seams

logger = logging.getLogger(__name__)


@contextmanager
def session(run: Run, mode: str) -> Iterator[None]:
    """Enclose a training, an evaluation or a prediction in a session. Inside an open session, the context does nothing.

    For evaluation and prediction, the session announces `on_setup`. A training announces `on_setup` itself, after it
    built the loader and before it builds the optimizer. If an error ends the session, the session announces
    `on_exception`. At its end, the session always announces `on_close`.

    Args:
        run: the run.
        mode: `train`, `evaluate` or `predict`.
    """
    if run.mode:
        yield
        return
    record = run.session
    record.mode, record.seams = mode, Seams()
    monitor = failure_monitor(run)
    try:
        monitor.begin()
        if mode != "train":
            run.announce("on_setup")
        with indices_explained(run):
            yield
    except BaseException as error:
        run.activity.fail(error)
        record.exception = explained = monitor.explain(error)
        _announce_ending(run, "on_exception")
        _announce_ending(run, "on_close")
        if explained is not error:
            raise explained from error
        raise
    else:
        run.announce("on_close")
    finally:
        run.bus.timeline.close()
        record.mode, record.exception = "", None
        run.drop_batch()
        run.unwrap()
        _drop_requests(run)


def _drop_requests(run: Run) -> None:
    """Drop all raised flags at the end of a session, so that the next session starts without requests."""
    control, speaking = run.control, run.control.speaking
    before, speaking.author = speaking.author, "run"
    for flag in filter(control.raised, FLAGS):
        control.veto(flag, "the session is over")
    control.settle()
    control.finish()
    speaking.author = before


def _announce_ending(run: Run, event: str) -> None:
    """Announce an event at the end of a failed session. If a handler fails, log its error and raise nothing."""
    try:
        run.announce(event)
    except BaseException as error:  # also Ctrl-C: all resources are closed, and the original error is raised
        logger.error("%s failed while the run was ending with %r: %s", event, run.exception, error, exc_info=error)
