"""Traces: the events that a run announced, as text that you can read, store and compare."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .bus import EventBus


@dataclass
class Trace:
    """The events that a bus announced in a `with record(bus)` block."""

    entries: list[tuple[int, str]] = field(default_factory=list)
    """For each event, a pair: the number of completed steps, and the name of the event."""

    @property
    def events(self) -> list[str]:
        """The names of the events."""
        return [event for _, event in self.entries]

    def __str__(self) -> str:
        """Return one line per event. Only the first event of a step shows the number of the step."""
        lines, shown = [], None
        for step, event in self.entries:
            lines.append(f"{step:>5}  {event}" if step != shown else f"       {event}")
            shown = step
        return "\n".join(lines) + "\n"

    def difference(self, other: Trace) -> str:
        """Return the difference from another trace as a unified diff; empty if the traces are equal."""
        mine, others = ([f"{step} {event}" for step, event in trace.entries] for trace in (self, other))
        return "\n".join(difflib.unified_diff(mine, others, "this", "other", lineterm="", n=3))


@contextmanager
def record(bus: EventBus) -> Iterator[Trace]:
    """Record the events that a bus announces in a `with` block, including events without handlers.

    Example:
        with record(trainer.bus) as trace:
            trainer.train()
        print(trace)
    """
    trace = Trace()

    def watch(event: str, run: Any) -> None:
        trace.entries.append((run.control.step if hasattr(run, "control") else 0, event))

    bus.watchers.append(watch)
    try:
        yield trace
    finally:
        bus.watchers.remove(watch)
