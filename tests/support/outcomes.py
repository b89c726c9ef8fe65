"""Results of runs, to compare: weights, logs and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbus.events import record
from trainbus.testing.tiny import equal, same_weights, timeless, weights

__all__ = [
    "equal",
    "history",
    "last_window",
    "logged",
    "same_weights",
    "saved_steps",
    "steps_of",
    "timeless",
    "weights",
]


def history(run: Any) -> list[dict[str, Any]]:
    """Return the log history of a trainer without speeds and durations."""
    return [timeless(entry) for entry in run.state.log_history]


def last_window(run: Any) -> dict[str, Any] | None:
    """Return the log entry with the training loss of the last step, or None if there is none."""
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    return timeless(logged[-1]) if logged and logged[-1]["step"] == run.state.max_steps else None


def steps_of(trained: Any, event: str) -> list[int]:
    """Train and return the steps at which an event was announced."""
    with record(trained.bus) as trace:
        trained.train()
    return [step for step, announced in trace.entries if announced == event]


def logged(trained: Any, key: str) -> dict[int, Any]:
    """Return the logged values of a key by step. Fail if one step has two."""
    entries = [entry for entry in trained.state.log_history if key in entry]
    values = {entry["step"]: entry[key] for entry in entries}
    assert len(values) == len(entries), f"{key} was logged twice at one step: {entries}"
    return values


def saved_steps(folder: Path | str) -> list[int]:
    """Return the steps of the checkpoints in a folder."""
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in Path(folder).glob("checkpoint-*"))
