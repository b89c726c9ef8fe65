"""Where the time of a run goes: time marks of a step, and the sums of their intervals.

A *part* is a period of a step, such as `forward`. Code that runs in every step makes a mark with `marks += (PART,
now())`, which takes about 0.1 microseconds. A mark names the part that begins now. The part ends at the next mark, so
each moment of a run belongs to one part. `fold` adds up many marks at once.

Marks nest in levels. The bus opens a level with the mark `CALL`, makes a mark for each handler, and closes the level
with the mark `DONE`. A `Scope`, such as an evaluation, is a level too. Each scope names a part, such as `evaluate`.
All time in a scope counts for this part, including the time of handlers. If a scope is inside another scope, its time
counts for the part of the outermost scope.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from .activity import AGREE, AWAIT_SAVE, BACKWARD, EVALUATION, FORWARD, LOG, PREDICTION, SAVE, Activity

now = perf_counter_ns
"""The time in nanoseconds, from any start."""

STEP = "step"
"""The mark that begins a step. The step first waits for its batches."""
DATA = "wait for data"
COPY = "copy to device"
CLIP = "clip"
APPLY = "update"
CALLBACKS = "callbacks"
ENGINE = "engine"
"""The code of the loop between the other parts."""
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
"""Parts that most steps do not have. A step with a rare part does not count in medians."""

FULL = 8192
"""When `marks` has this number of values (about 250 steps), the bus adds up the marks of the complete steps."""
SAMPLE = 7
"""One of this number of ordinary steps (steps without a rare part) is measured by part and handler. For the other
steps, only the whole time is measured."""
KEPT = 512
"""The largest number of steps in a median. The median covers the newest steps that were measured by part."""


class Scope:
    """A time span, such as an evaluation. All its time, including the time of handlers, counts for the part `part`."""

    def __init__(self, part: str, *, counts: bool = True) -> None:
        self.part = part
        self.counts = counts
        """Whether the scope adds one to the count of its part in `Timeline.times`. False for a wait for a save, which
        is not another save."""


CALL, DONE = object(), object()
"""`CALL` begins a level, and `DONE` ends the innermost level. `CALL` has no time, because the mark of a handler follows
at once."""
COLLECTION = Scope(COLLECT)
SCOPES: dict[str, Scope] = {
    **{LOG: Scope(LOGS), EVALUATION: Scope(EVALUATE), PREDICTION: Scope(EVALUATE), SAVE: Scope(SAVES)},
    **{AGREE: Scope(WAIT), AWAIT_SAVE: Scope(SAVES, counts=False)},
}
"""Activity -> the scope for which all time of this activity counts."""


class Sums:
    """Nanoseconds by part of a training, such as `forward`, and by handler."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = dict.fromkeys(PARTS, 0)
        """Part -> nanoseconds."""
        self.handlers: dict[tuple[str, str], list[float]] = {}
        """(callback, event) -> nanoseconds and number of calls. The time of work that the handler starts, such as an
        evaluation, is not included."""

    def add(self, other: Sums, time: float = 1, calls: float = 1) -> None:
        """Add other sums: their times multiplied by `time`, their numbers of calls multiplied by `calls`."""
        for part, passed in other.parts.items():
            self.parts[part] += passed * time
        for key, (passed, number) in other.handlers.items():
            own = self.handlers.setdefault(key, [0, 0])
            own[0] += passed * time
            own[1] += number * calls


class Timeline:
    """The time of one training by part (such as `forward`), by handler and by step.

    Outside of a training, the timeline measures nothing.
    """

    def __init__(self) -> None:
        self.marks: list[Any] = []
        """A flat list of marks. Each mark is two values: what begins (a part, a scope or a handler), and the time in
        nanoseconds."""
        self.opened = False
        """Whether there was a training."""
        self._thread = 0
        self._watches = False
        self._reset()

    def _reset(self) -> None:
        self.marks.clear()
        self.ranks: list[dict[str, float]] = []
        """One dict per rank: part -> seconds of the median step. The list is empty until the training ends, and in a
        run with a single process."""
        self.rows: deque[tuple[float, dict[str, float]]] = deque(maxlen=KEPT)
        """The last measured steps without a rare part. For each step: its nanoseconds, and the nanoseconds of each
        part."""
        self.steps = 0
        """The number of complete steps of the training so far."""
        self.times: dict[str, int] = dict.fromkeys(PARTS, 0)
        """Rare part -> how many times the part began."""
        self.stalled = 0.0
        """Seconds of stalls in parts that do not count as waiting, such as `backward`. `WatchStalls` adds these
        seconds."""
        # The sums so far: `_ordinary` has the measured steps without a rare part, `_others` has everything else.
        self._others, self._ordinary = Sums(), Sums()
        self._ordinary_steps = 0
        self._whole_time, self._whole_steps = 0, 0  # for the steps with only their whole time measured
        self._looks: list[int] = []  # the indices in `marks` at which `look` was called
        self._since_sample = SAMPLE
        self._levels: list[Any] = []
        self._top: Any = ENGINE
        self._scope = ""
        self._since = 0
        self._between_steps = False  # whether the last mark that was added up begins a step
        self._row = Sums()
        self._row_is_rare = True  # the first step is not ordinary: it prepares what later steps use
        self._in_step = False

    def open(self, activity: Activity) -> None:
        """Begin to measure a training on this thread.

        Args:
            activity: the current activity of the engine. From this call on, the activity reports each change to the
                timeline.
        """
        self.close()
        activity.mark = self._mark_activity
        self.opened = True
        self._reset()
        self._thread, self._since, self._watches = threading.get_ident(), now(), True
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """Stop measuring. Afterwards, `sums()` and the attributes still give the values of the training."""
        if self._watches:
            self.marks += (ENGINE, now())
            self.fold()
            gc.callbacks.remove(self._collected)
            self._watches = False

    def doing(self) -> str:
        """Return what the training does now: a part such as `forward`, or a handler such as `Log.on_log_due`.

        Any thread may call this method.
        """
        top, _ = self._present()
        if top.__class__ is list:
            running = (".".join(key) for key, times in list(self._row.handlers.items()) if times is top)
            return next(running, CALLBACKS)
        return str(top.part if top.__class__ is Scope else top if top.__class__ is str else top.label)

    def part(self) -> str:
        """Return the part that runs now, such as `forward`; `callbacks` for a handler.

        In a scope, such as an evaluation, return the part of the outermost scope (`evaluate`), also for a handler. Any
        thread may call this method.
        """
        top, scope = self._present()
        return scope or (str(top) if top.__class__ is str else CALLBACKS)

    def _present(self) -> tuple[Any, str]:
        """Return what runs now, and the part of the outermost open `Scope`. The second value may be ""."""
        levels, top, scope = list(self._levels), self._top, self._scope
        for what in self.marks[::2]:
            if what is CALL:
                levels.append((top, scope))
            elif what is STEP:
                levels.clear()
                top, scope = DATA, ""
            elif what is DONE:
                top, scope = levels.pop() if levels else (ENGINE, "")
            else:
                if what.__class__ is Scope:
                    levels.append((top, scope))
                    scope = scope or what.part
                top = what
        return top, scope

    def look(self) -> None:
        """Measure each part of the current step, such as forward and backward. Exclude this step from medians.

        Call this method in a step with rare work, such as a save. Any thread may call this method. Without a call, the
        timeline measures the parts of every `SAMPLE`-th step, and only the whole time of the other steps.
        """
        self._looks.append(len(self.marks))

    def sums(self) -> Sums:
        """Return the nanoseconds of the training by part, such as `forward`, and by handler.

        Most steps are measured only as a whole. The method assumes that the parts of such a step have the same
        proportions as the parts of the other steps.
        """
        self.fold()
        found, ordinary = Sums(), self._ordinary
        found.add(self._others)
        found.add(self._row)
        if self._ordinary_steps:  # assume that the steps that were not measured by part had the same proportions
            time = self._whole_time / max(1, sum(ordinary.parts.values()))
            found.add(ordinary, 1 + time, 1 + self._whole_steps / self._ordinary_steps)
        return found

    def _mark_activity(self, name: str, begins: bool) -> None:
        """Make a mark when an activity begins or ends. Do nothing for activities that are not keys of `SCOPES`."""
        scope = SCOPES.get(name)
        if scope is not None:
            if begins and scope.part in RARE:
                self.look()
            self.marks += (scope if begins else DONE, now())

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        # The garbage collector has three generations. Collecting the oldest may take a tenth of a second, the others
        # take microseconds.
        if info["generation"] == 2 and threading.get_ident() == self._thread:
            self.look()
            self.marks += (COLLECTION, now()) if phase == "start" else (DONE, now())

    def fold(self) -> None:
        """Add up the times of all marks, and delete the marks."""
        self._fold(len(self.marks))

    def fold_steps(self) -> None:
        """Add up and delete the marks of the complete steps.

        If the current step has very many marks, also add up and delete these marks, to free the memory.
        """
        begin = _last_step(self.marks) + 2
        self._fold(begin if len(self.marks) - begin < FULL // 2 else len(self.marks))

    def _fold(self, end: int) -> None:
        marks, looks = self.marks, self._looks
        taken = marks[:end]
        del marks[:end]
        self._looks = [place - end for place in looks if place >= end]
        if not self._watches:
            return
        starts = [-2, *_places(taken)] if self._between_steps else _places(taken)
        if not starts:
            self._add_up(taken)
            return
        self._add_up(taken[: starts[0] + 2])
        for start, stop in pairwise(starts):
            is_rare = self._row_is_rare = self._row_is_rare or any(start < place <= stop for place in looks)
            self._since_sample += 1
            if is_rare or self._since_sample >= SAMPLE:
                self._since_sample = self._since_sample if is_rare else 0
                self._add_up(taken[start + 2 : stop + 2])
            else:
                passed, self._since = taken[stop + 1] - self._since, taken[stop + 1]
                self._whole_time += passed
                self._whole_steps += 1
                self.steps += 1
        self._add_up(taken[starts[-1] + 2 :])

    def _add_up(self, taken: list[Any]) -> None:
        parts, handlers, levels = self._row.parts, self._row.handlers, self._levels
        what: Any
        top: Any = self._top  # what runs: a part, a scope, or, for a handler, its list in `handlers`
        scope, since = self._scope, self._since
        for what, at in zip(taken[::2], taken[1::2]):
            if what is CALL:
                levels.append((top, scope))
                continue
            passed, since = at - since, at
            if top.__class__ is list:
                parts[scope or CALLBACKS] += passed
                top[0] += passed
            elif top.__class__ is str:
                parts[scope or top] += passed
            else:
                parts[scope] += passed
            if what is STEP:
                self._end_row()
                parts, handlers = self._row.parts, self._row.handlers
                levels.clear()
                top, scope = DATA, ""
            elif what is DONE:
                top, scope = levels.pop() if levels else (ENGINE, "")
            elif what.__class__ is str:
                top = what
            elif what.__class__ is Scope:
                levels.append((top, scope))
                self.times[what.part] += what.counts and not scope
                scope = scope or what.part
                self._row_is_rare |= what.part in RARE
                top = what
            else:  # a handler
                top = handlers.get(what.key)
                if top is None:
                    top = handlers[what.key] = [0, 0]
                top[1] += 1
        self._top, self._scope, self._since = top, scope, since
        if taken:
            self._between_steps = taken[-2] is STEP

    def _end_row(self) -> None:
        row, self._row = self._row, Sums()
        is_step = self._in_step and row.parts[APPLY] > 0  # at the end of an epoch, no step follows
        if is_step and not self._row_is_rare:
            self.rows.append((sum(row.parts.values()), row.parts))
            self._ordinary.add(row)
            self._ordinary_steps += 1
        else:
            self._others.add(row)
        self.steps += is_step
        self._row_is_rare &= not is_step
        self._in_step = True

    def end_step(self) -> None:
        """Add the last step of the training to the sums. Any other step is added when the next step begins."""
        self.fold()
        if self._in_step:
            ended = self._row
            self._end_row()
            self._in_step = False
            self._move_handlers(ended)

    def _move_handlers(self, ended: Sums) -> None:
        """From now on, add the time of the running handlers to the sums in `_row`.

        Until now, it was added to `ended`, the sums of the last step.
        """
        keys = {id(times): key for key, times in ended.handlers.items()}

        def moved(top: Any) -> Any:
            return self._row.handlers.setdefault(keys[id(top)], [0, 0]) if top.__class__ is list else top

        self._top = moved(self._top)
        self._levels = [(moved(top), scope) for top, scope in self._levels]


def _places(taken: list[Any]) -> list[int]:
    """Return the index in `taken` of each mark `STEP`. Every step begins with such a mark."""
    return [2 * number for number, what in enumerate(taken[::2]) if what is STEP]


def _last_step(marks: list[Any]) -> int:
    """Return the index in `marks` of the last mark `STEP`; -2 if there is none."""
    return next((place for place in range(len(marks) - 2, -1, -2) if marks[place] is STEP), -2)
