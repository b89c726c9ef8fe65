"""Warn if a training makes no progress, with the stack of its thread."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage
from ...events.timeline import DATA, EVALUATE, SAVES, WAIT

logger = logging.getLogger(__name__)

_OWN_PARTS = (DATA, WAIT, EVALUATE, SAVES)
"""Parts of a run that the goodput already counts by themselves, so a stall in one of these parts is not added."""

LONGEST = 10.0
"""The longest time between two checks of the training, in seconds."""


@dataclass
class WatchStalls(Callback):
    """Logs a warning if a training makes no progress, with the activity of the training and the stack of its thread.

    Every trainer has a `WatchStalls` that warns after 600 seconds. The argument `stall_after` sets another time. With
    `stall_after=None`, the trainer has no `WatchStalls`. A step, an evaluation batch and the call of a handler are
    progress. A thread checks for progress every few seconds, so steps have no extra cost.

    Raises:
        ArgumentError: if `seconds` is not above 0.
    """

    stage = Stage.PREPARE
    arguments = ("stall_after",)

    seconds: float = 600.0
    """The time without progress after which the callback warns, in seconds."""
    _ended: threading.Event | None = field(default=None, init=False, repr=False, compare=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ArgumentError(f"WatchStalls({self.seconds}): set a number of seconds above 0.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> WatchStalls | None:
        return None if args.stall_after is None else cls(args.stall_after)

    def on_train_begin(self, run: Run) -> None:
        self.on_close()
        self._ended = ended = threading.Event()
        watched = threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(run, ended, watched), name="trainbus-stalls", daemon=True
        )
        self._thread.start()

    def on_close(self) -> None:
        ended, thread, self._ended, self._thread = self._ended, self._thread, None, None
        if ended is not None and thread is not None:
            ended.set()
            thread.join()

    def _watch(self, run: Run, ended: threading.Event, watched: int) -> None:
        timeline = run.bus.timeline
        seen, since, warned, part = _progress(run), time.monotonic(), False, ""
        while not ended.wait(min(LONGEST, self.seconds / 4)):
            now, at = _progress(run), time.monotonic()
            if now != seen:
                if warned:
                    logger.warning("The training continues after %.0f seconds without progress.", at - since)
                    timeline.stalled += 0.0 if part in _OWN_PARTS else at - since
                seen, since, warned = now, at, False
            elif not warned and at - since >= self.seconds:
                warned, part = True, timeline.part()
                timeline.look()  # else the stall might count for other parts, in proportion to other steps
                logger.warning(
                    "The training has made no progress for %.0f seconds, after step %d. Its activity: %s. Its thread "
                    "is here:\n%s",
                    at - since,
                    run.state.global_step,
                    timeline.doing(),
                    _stack(watched),
                )


def _progress(run: Run) -> tuple[int, int, int]:
    """Return numbers that change when a training makes progress."""
    return run.state.global_step, len(run.bus.timeline.marks), run.evaluation.batch_number


def _stack(thread: int) -> str:
    frame: Any = sys._current_frames().get(thread)
    return "(the thread has ended)" if frame is None else "".join(traceback.format_stack(frame)).rstrip()
