"""Run Python's garbage collector at chosen steps only."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field

from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage
from ...events.trigger_fields import check_triggers
from ...events.triggers import Moment, Trigger, every

_TURNED_OFF: list[int] = []
"""One entry for each open session that turned automatic collection off."""


@dataclass
class CollectGarbage(Callback):
    """Turns Python's automatic garbage collection off during training, and collects garbage when `trigger` is due.

    An automatic collection may happen in any step. The time of a collection grows with the number of objects in the
    program. On several ranks, automatic collections happen in different steps on each rank, and all ranks wait for the
    rank that collects. With `CollectGarbage(every(500))`, all ranks collect at the end of the same steps.

    Objects in reference cycles use memory until the next collection. All other objects are freed immediately, with and
    without the callback. When the session ends, also with an error, the callback restores the earlier setting of
    automatic collection. In data workers, automatic collection stays on.

    Raises:
        ArgumentError: if `trigger` is not a trigger, or if there are several ranks and `trigger` reads the clock.
    """

    stage = Stage.RELEASE

    trigger: Trigger = field(default_factory=lambda: every(100))
    """When to collect garbage, at the end of a step or epoch. Default: every 100 steps."""
    freeze: bool = True
    """Whether collections skip the objects that exist when training begins (`gc.freeze`). After the session,
    collections include these objects again. If your program called `gc.freeze` earlier, the callback freezes no
    objects."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)
    _off: bool = field(default=False, init=False, repr=False, compare=False)
    _froze: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_triggers(self)

    def on_setup(self, run: Run) -> None:
        self._last = None
        if self.trigger.clocked and not run.ranks.single_process:
            raise ArgumentError(
                f"CollectGarbage({self.trigger!r}): the clocks of the ranks differ, so the ranks would collect in "
                "different steps. Use a trigger of steps, such as every(500)."
            )

    def on_train_begin(self) -> None:
        gc.collect()  # frozen garbage would stay until the end
        if self.freeze and gc.get_freeze_count() == 0:
            gc.freeze()
            self._froze = True
        if gc.isenabled():
            gc.disable()
            self._off = True
            _TURNED_OFF.append(id(self))

    def on_step_end(self, run: Run) -> None:
        self._collect_if_due(run.moment("step"))

    def on_epoch_end(self, run: Run) -> None:
        self._collect_if_due(run.moment("epoch"))

    def _collect_if_due(self, now: Moment) -> None:
        if self.trigger.due_again(now, self._last):
            self._last = now
            gc.collect()

    def on_close(self) -> None:
        if self._off:
            self._off = False
            _TURNED_OFF.remove(id(self))
            gc.enable()
        if self._froze:
            self._froze = False
            gc.unfreeze()


def _collect_in_fork() -> None:
    """Turn automatic collection on in a forked process, such as a data worker.

    No handler runs in such a process, so the callback cannot collect there.
    """
    if _TURNED_OFF:
        gc.enable()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_collect_in_fork)
