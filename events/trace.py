"""Traces: which events a run announced, in order, as text that can be read, kept and compared."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .bus import EventBus


@dataclass
class Trace:
    """The events that were announced while it was recorded."""

    entries: list[tuple[int, str]] = field(default_factory=list)
    """The number of steps done, and the event."""

    @property
    def events(self) -> list[str]:
        """The names alone."""
        return [event for _, event in self.entries]

    def __str__(self) -> str:
        """Return a line per event; those nested in the same step stand under its number once."""
        lines, shown = [], None
        for step, event in self.entries:
            lines.append(f"{step:>5}  {event}" if step != shown else f"       {event}")
            shown = step
        return "\n".join(lines) + "\n"

    def difference(self, other: Trace) -> str:
        """Return what differs from another trace, as a unified diff; empty if they are equal."""
        mine, others = ([f"{step} {event}" for step, event in trace.entries] for trace in (self, other))
        return "\n".join(difflib.unified_diff(mine, others, "this", "other", lineterm="", n=3))


@contextmanager
def record(bus: EventBus) -> Iterator[Trace]:
    """Record what a bus announces, heard or not.

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
