"""Where the time of a run goes: marks that a step makes, and what they add up to.

Code that runs in every step makes a mark with `marks += (PART, now())`. That calls no Python function and takes about
0.1 microseconds. A mark says what the process does from this moment on, so every moment of a run has one part. `fold`
adds up many marks at once.

Marks nest. The bus opens a level with `CALL`, marks each handler, and closes the level with `DONE`. A `Scope`, such as
an evaluation, is a level too: all time in it belongs to it, also that of handlers.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from time import perf_counter_ns as now
from typing import Any

from .activity import AGREE, BACKWARD, EVALUATION, FORWARD, LOG, PREDICTION, SAVE, Activity

STEP = "step"
"""A step begins: it waits for its first batch."""
DATA = "wait for data"
COPY = "copy to device"
CLIP = "clip"
APPLY = "update"
CALLBACKS = "callbacks"
ENGINE = "engine"
"""What the loop does between the other parts."""
LOGS = "log"
EVALUATE = "evaluate"
SAVES = "save"
WAIT = "wait for ranks"
COLLECT = "garbage collection"

PARTS = (
    *(DATA, COPY, FORWARD, BACKWARD, CLIP, APPLY, CALLBACKS, ENGINE, WAIT),
    *(LOGS, EVALUATE, SAVES, COLLECT),
)
"""All parts of a run, in the order in which a table shows them."""
RARE = frozenset({LOGS, EVALUATE, SAVES, COLLECT})
"""Parts that most steps do not have. A step with one of them does not count in medians."""

FULL = 8192
"""The number of values in `marks` at which the bus folds them: about 250 steps."""
KEPT = 512
"""The number of the last steps that medians are made of."""


class Scope:
    """A level whose whole time belongs to one part."""

    def __init__(self, part: str) -> None:
        self.part = part


CALL, DONE = object(), object()
"""A level begins; the innermost level ends. `CALL` needs no time: the first handler follows."""
COLLECTION = Scope(COLLECT)
SCOPES: dict[str, Scope] = {
    **{LOG: Scope(LOGS), EVALUATION: Scope(EVALUATE), PREDICTION: Scope(EVALUATE), SAVE: Scope(SAVES)},
    **{AGREE: Scope(WAIT)},
}
"""The activities that are parts of their own."""


class Timeline:
    """The time of one training by part, by handler and by step. Outside of a training it drops all marks."""

    def __init__(self) -> None:
        self.marks: deque[Any] = deque()
        """Pairs of what begins and when, in nanoseconds."""
        self.opened = False
        """Whether there was a training."""
        self._thread = 0
        self._watches = False
        self._reset()

    def _reset(self) -> None:
        self.marks.clear()
        self.totals: dict[str, int] = dict.fromkeys(PARTS, 0)
        """Part -> nanoseconds."""
        self.handlers: dict[tuple[str, str], list[int]] = {}
        """(callback, event) -> nanoseconds and number of calls. Without the time of what the handler started."""
        self.rows: deque[tuple[int, dict[str, int]]] = deque(maxlen=KEPT)
        """The last complete steps without a rare part: nanoseconds of the step, and of each of its parts."""
        self.ranks: list[dict[str, float]] = []
        """Part -> seconds of the median step, of each rank. Empty until the training ends, and for one rank."""
        self.steps = 0
        """The number of complete steps."""
        self.tagged = 0
        """The number of complete steps with a rare part. The first step is one of them."""
        self.times: dict[str, int] = dict.fromkeys(PARTS, 0)
        """Part -> how often it began, for the rare parts."""
        self._levels: list[Any] = []
        self._top: Any = ENGINE
        self._scope: str = ""
        self._since = 0
        self._row: dict[str, int] = {}
        self._row_tagged = True  # the first step prepares much that later steps find ready
        self._in_step = False

    def open(self, activity: Activity) -> None:
        """Begin the timeline of a training, on this thread. Activities of this thread mark their begin and end."""
        self.close()
        activity.mark = self._mark_activity
        self.opened = True
        self._reset()
        self._thread, self._since, self._watches = threading.get_ident(), now(), True
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """End the timeline. Its values stay."""
        if self._watches:
            self.marks += (ENGINE, now())
            self.fold()
            gc.callbacks.remove(self._collected)
            self._watches = False

    @property
    def is_open(self) -> bool:
        """Whether a training is in progress."""
        return self._watches

    def _mark_activity(self, name: str, begins: bool) -> None:
        """Mark the begin or the end of an activity of the engine, if it is a part of its own."""
        scope = SCOPES.get(name)
        if scope is not None:
            self.marks += (scope if begins else DONE, now())

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        # The younger generations take microseconds. The oldest may take a tenth of a second.
        if info["generation"] == 2 and threading.get_ident() == self._thread:
            self.marks += (COLLECTION, now()) if phase == "start" else (DONE, now())

    def fold(self) -> None:
        """Add up the marks since the last call."""
        marks = self.marks
        if not self._watches:
            marks.clear()
            return
        taken = [marks.popleft() for _ in range(len(marks))]
        totals, handlers, levels, row = self.totals, self.handlers, self._levels, self._row
        top, scope, since = self._top, self._scope, self._since
        for what, at in zip(taken[::2], taken[1::2]):
            if what is CALL:
                levels.append((top, scope))
                continue
            passed, since = at - since, at
            if top.__class__ is str:
                part = scope or top
            elif top.__class__ is Scope:
                part = scope
            else:  # a handler
                part = scope or CALLBACKS
                own = handlers.get((top.owner_id, top.event.name))
                if own is None:
                    own = handlers[top.owner_id, top.event.name] = [0, 0]
                own[0] += passed
                own[1] += 1
            totals[part] += passed
            row[part] = row.get(part, 0) + passed
            if what is STEP:
                self._end_row(row)
                row = self._row = {}
                top = DATA
            elif what is DONE:
                top, scope = levels.pop() if levels else (ENGINE, "")
            else:
                if what.__class__ is Scope:
                    levels.append((top, scope))
                    self.times[what.part] += not scope
                    scope = scope or what.part
                    self._row_tagged |= what.part in RARE
                top = what
        self._top, self._scope, self._since = top, scope, since

    def _end_row(self, row: dict[str, int]) -> None:
        if self._in_step and APPLY in row:  # at the end of an epoch, no step follows
            self.steps += 1
            if self._row_tagged:
                self.tagged += 1
            else:
                self.rows.append((sum(row.values()), row))
            self._row_tagged = False
        self._in_step = True

    def end_step(self) -> None:
        """End the last step, so that it counts although no step follows."""
        self.fold()
        if self._in_step:
            self._end_row(self._row)
            self._row, self._in_step = {}, False
