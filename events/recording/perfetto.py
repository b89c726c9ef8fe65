"""Convert a recording to a trace in Chrome's format. ui.perfetto.dev and chrome://tracing show such a trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .files import Recording, number
from .recorder import Record

SPANS: dict[str, tuple[str, frozenset[str]]] = {
    "on_train_begin": ("training", frozenset({"on_train_end", "on_exception"})),
    "on_epoch_begin": ("epoch", frozenset({"on_epoch_end"})),
    "on_step_begin": ("step", frozenset({"on_step_end"})),
    "on_evaluate_begin": ("evaluation", frozenset({"on_evaluate_end"})),
    "on_save_begin": ("save", frozenset({"on_save"})),
}
"""Event that begins a span -> the name of the span, and the events that end it."""

PARTS = {
    "on_batch": "forward",
    "on_loss": "backward",
    "on_substep_end": "between batches",
    "on_gradients": "clip",
    "on_pre_optimizer_step": "update",
    "on_optimizer_step": "after the update",
}
"""Event of a step -> the name of the part of the step that begins with this event. The next event ends the part."""

_COUNTERS = {"lr": "learning rate", "norm": "gradient norm"}


def chrome_trace(recordings: Iterable[Recording]) -> dict[str, Any]:
    """Convert the recordings of one or more ranks to one trace, as a dict for a JSON file.

    In the trace, each rank is a process. Times are in microseconds since the earliest session of the recordings began.
    """
    recordings = list(recordings)
    began = min((head["time"] for recording in recordings for head in recording.sessions), default=0.0)
    events: list[dict[str, Any]] = []
    for recording in recordings:
        events += _of_rank(recording, began)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_rank(recording: Recording, began: float) -> list[dict[str, Any]]:
    rank = recording.rank
    common = {"pid": rank, "tid": 1}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 1, "args": {"name": "run"}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 2, "args": {"name": "events and flags"}},
    ]
    opened: dict[str, tuple[float, Record]] = {}
    part: tuple[float, str] | None = None
    offset = 1e6 * (recording.sessions[0]["time"] - began) if recording.sessions else 0.0
    time = offset
    for record in recording.records:
        if "session" in record:
            offset = 1e6 * (recording.sessions[record["session"]]["time"] - began)
            opened, part = {}, None
        if "f" in record:
            events.append(_instant(record, time, rank, f"{record['by']} {record['do']} {record['f']}"))
            continue
        event, time = record["e"], offset + 1e6 * record["t"]
        if part is not None:
            events.append({"ph": "X", "name": part[1], "ts": part[0], "dur": time - part[0], "cat": "part", **common})
            part = None
        if event in PARTS:
            part = (time, PARTS[event])
        if event in SPANS:
            opened[event] = (time, record)
        for begins, (name, ends) in SPANS.items():
            if event in ends and begins in opened:
                start, first = opened.pop(begins)
                label = f"{name} {first['s']}" if name in ("step", "save") else name
                span = {"ph": "X", "name": label, "ts": start, "dur": time - start, "cat": name, **common}
                events.append({**span, "args": {"step": first["s"]}})
        if event not in PARTS and event not in SPANS and event != "on_step_end":
            events.append(_instant(record, time, rank, event))
        events += _counters(record, time, rank)
    return events


def _instant(record: Record, time: float, rank: int, name: str) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if key not in ("e", "t", "session")}
    return {"ph": "i", "s": "t", "name": name, "ts": time, "pid": rank, "tid": 2, "cat": "event", "args": kept}


def _counters(record: Record, time: float, rank: int) -> list[dict[str, Any]]:
    values = {label: record.get(name) for name, label in _COUNTERS.items()}
    if record.get("e") == "on_gradients":
        values["loss"] = record.get("loss")
    return [
        {"ph": "C", "name": label, "ts": time, "pid": rank, "tid": 0, "args": {"value": value}}
        for label, value in ((label, number(value)) for label, value in values.items())
        if isinstance(value, (int, float)) and abs(value) < float("inf")
    ]
