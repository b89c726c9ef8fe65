"""VirtualClock: time that stands still until a test moves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import Trainer

CLOCKS = ("time", "monotonic", "perf_counter")
"""The functions of the module `time` that read the virtual clock."""


class VirtualClock:
    """Time that stands still until a test moves it.

    Inside of `with clock.running():`, `time.sleep` advances the clock immediately.
    """

    def __init__(self) -> None:
        """Start at 0 seconds."""
        self.seconds = 0.0
        """The seconds that have passed."""

    def advance(self, seconds: float) -> None:
        """Add `seconds` to the time."""
        self.seconds += seconds

    def per_step(self, trainer: Trainer, seconds: float) -> Callable[[], Any]:
        """Subscribe a handler that advances the clock by `seconds` in each step.

        Returns:
            A function that removes the handler.
        """
        undo: Callable[[], Any] = trainer.on("on_step_begin", lambda: self.advance(seconds), id="clock")
        return undo

    @contextmanager
    def running(self) -> Iterator[VirtualClock]:
        """In a `with` block, use this clock for `time.time`, `time.monotonic`, `time.perf_counter` and `time.sleep`."""
        originals = {name: getattr(time, name) for name in (*CLOCKS, "sleep")}
        # Start at whole seconds. With a fraction, the rounding of floats could make a difference of two readings too
        # small.
        begun = {name: float(int(originals[name]())) for name in CLOCKS}
        for name in CLOCKS:
            setattr(time, name, lambda name=name: begun[name] + self.seconds)
        time.sleep = self.advance  # type: ignore[assignment]
        try:
            yield self
        finally:
            for name, original in originals.items():
                setattr(time, name, original)
