"""Read the values that a report needs from a recording, `events.jsonl`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....events.recording.files import number
from ....events.recording.recorder import Record
from ....events.recording.rows import Row, rows_of
from .curves import Curve


@dataclass
class Recorded:
    """The contents of a recording that a report shows."""

    heads: list[dict[str, Any]] = field(default_factory=list)
    """The first record of each session, with arguments, handlers and environment."""
    logs: list[dict[str, Any]] = field(default_factory=list)
    """The logged rows. Each row also has its `step`, and its training time as `seconds`."""
    decisions: list[Row] = field(default_factory=list)
    """One row for each evaluation, save, deletion, load of the best model, and stop."""
    steps: dict[str, Curve] = field(default_factory=dict)
    """The values of every step, by name: `loss`, `grad_norm` and `learning_rate`."""
    error: str = ""
    """The error that ended the last session; empty if there is none."""


def read_recorded(path: Path) -> Recorded:
    """Read a recording, and return the values that a report needs.

    Reading stops at an incomplete or damaged line, which a killed process may leave.

    Raises:
        OSError: if the file cannot be read.
        KeyError, TypeError, AttributeError: if a record has an unexpected form.
    """
    found, records = Recorded(), []
    before = last = 0.0
    new = False
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict):
                break
            if "recording" in record:
                found.heads.append(record)
                before, found.error, new = last, "", True
                continue
            last = before + record["t"] if "t" in record else last
            if "p" in record:
                _add_step(found.steps, record, last)
            elif "e" in record or "f" in record:
                records.append(record)
                _add_event(found, record, last)
                if new:
                    record["session"], new = len(found.heads) - 1, False
    found.decisions = [row for row in rows_of(records) if row["what"] != "log"]
    return found


def _add_step(curves: dict[str, Curve], record: Record, seconds: float) -> None:
    losses = [number(each) for each in record.get("loss", ()) if each is not None]
    values = {
        "loss": sum(losses) / len(losses) if losses else None,
        "grad_norm": number(record.get("norm")),
        "learning_rate": number(record.get("lr")),
    }
    for name, value in values.items():
        if isinstance(value, (int, float)):
            curves.setdefault(name, Curve()).add(record["s"], seconds, float(value))


def _add_event(found: Recorded, record: Record, seconds: float) -> None:
    if record.get("e") == "on_log" and isinstance(record.get("logs"), dict):
        row = {name: number(value) for name, value in record["logs"].items()}
        found.logs.append({**row, "step": record["s"], "seconds": seconds})
    elif record.get("e") == "on_exception":
        found.error = str(record.get("error", ""))
