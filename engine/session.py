"""Sessions: whatever a run opens is closed, however it ends, and the original error is the one that is raised."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ..events.composition import refuse_conflicts
from ..events.control import FLAGS
from .distributed.failures import watch_over
from .run import Run
from .seams import Seams

logger = logging.getLogger(__name__)


@contextmanager
def session(run: Run, mode: str) -> Iterator[None]:
    """Enclose training, evaluating or predicting; one inside another is part of it.

    Announces `on_setup` for evaluating and predicting (training builds more, and announces it itself), `on_exception`
    if an error ends the session, and `on_close` at its end in any case.
    """
    if run.mode:
        yield
        return
    run.mode = mode
    run.seams = Seams()
    watch = watch_over(run)
    try:
        watch.begin()
        refuse_conflicts(run.bus.subscribers.values())  # also of callbacks that were added after construction
        if mode != "train":
            run.announce("on_setup")
        yield
    except BaseException as error:
        run.exception = told = watch.explain(error)
        _tell(run, "on_exception")
        _tell(run, "on_close")
        if told is not error:
            raise told from error
        raise
    else:
        run.announce("on_close")
    finally:
        run.mode, run.exception, run.batch, run.outputs = "", None, None, None
        run.model_wrapped = run.model
        _drop_requests(run)


def _drop_requests(run: Run) -> None:
    """Drop what was asked of this session and not served, so that the next one does not begin with it."""
    control, speaking = run.control, run.control.speaking
    before, speaking.author = speaking.author, "run"
    for flag in filter(control.raised, FLAGS):
        control.veto(flag, "the session is over")
    control.settle()
    speaking.author = before


def _tell(run: Run, event: str) -> None:
    """Announce an event of an ending that has an error already: a second one is reported and does not replace it."""
    try:
        run.announce(event)
    except Exception as error:
        logger.error("%s failed while the run was ending with %r: %s", event, run.exception, error, exc_info=error)
