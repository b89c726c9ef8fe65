"""Goodput: the share of a run's time, over all its sessions, that was spent on steps that the run kept.

The callback `MeasureGoodput` appends records to a file in the output folder. This module adds up the records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .verdict import duration

NAME = "goodput.jsonl"
"""The name of the file in the output folder."""
VERSION = 1
"""The version of the format of the file `goodput.jsonl`."""

MEASURED = ("evaluating", "saving", "waiting")
"""The parts of a session that `MeasureGoodput` measures. All time after the last step that the run kept is lost,
including these parts. The other time since the first step is productive."""
PARTS = ("productive", "start_up", *MEASURED, "lost")
"""All parts of a session. Their times add up to the length of the session."""


@dataclass
class Point:
    """The measured times of a session, from its start to one moment."""

    step: int
    """The number of steps of the run that are done at this moment."""
    seconds: float
    """Seconds since the session began."""
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(MEASURED, 0.0))
    """Part in `MEASURED` -> its seconds since the session began."""


@dataclass
class Session:
    """One training session of a run: one call of `train()`.

    The first session of a script begins when the process starts, because importing and loading also take time. All
    other sessions, and all sessions in a notebook, begin with their call of `train()`.
    """

    id: str
    """The name of the session in the file `goodput.jsonl`."""
    began: float
    """When the session began, in seconds since 1970."""
    points: list[Point]
    """The measured moments of the session, in order of time. The first one is the moment before the first step."""
    ended: str = ""
    """How the session ended: `ended` (without an error), `failed` or `interrupted` (by a signal). Empty if the
    session still runs, or if its process was killed."""
    kept: int | None = None
    """The step up to which the run keeps the work of this session; None if it keeps all work. A later session that
    resumes from an earlier step loses the work after this step."""

    @property
    def seconds(self) -> float:
        """The length of the session up to its last record, in seconds."""
        return self.points[-1].seconds

    def keep(self, step: int) -> None:
        """Count the work of this session after `step` as lost, because a later session resumed from `step`."""
        self.kept = step if self.kept is None else min(self.kept, step)

    def steps(self) -> tuple[int, int, int]:
        """Return three numbers of steps of the run, such as (100, 160, 150).

        In the example, 100 steps were done when the session began. Its records end after step 160. The run keeps the
        work up to step 150.
        """
        first, last = self.points[0].step, max(point.step for point in self.points)
        return first, last, last if self.kept is None else max(first, min(last, self.kept))

    def to_dict(self) -> dict[str, Any]:
        """Return the seconds of each part of the session, its first, last and lost steps, and how it ended."""
        first, last, kept = self.steps()
        start, end = self.points[0], self.points[-1]
        if self.kept is not None:
            end = [point for point in self.points if point.step <= kept][-1] if self.kept >= first else start
        start_up = max(0.0, start.seconds - sum(start.parts.values()))
        rest = end.seconds - start_up
        shares = {name: min(max(0.0, end.parts[name]), rest) for name in MEASURED}
        return {
            "began": self.began,
            "seconds": self.seconds,
            "ended": self.ended,
            "first_step": first,
            "last_step": last,
            "lost_steps": last - kept,
            "productive": max(0.0, rest - sum(shares.values())),
            "start_up": start_up,
            **shares,
            "lost": self.seconds - end.seconds,
        }


@dataclass(frozen=True)
class Goodput:
    """The measured sessions of a run. The method `to_dict` computes the goodput of these sessions."""

    sessions: list[Session]
    """The sessions of the run, in order."""

    def to_dict(self) -> dict[str, Any]:
        """Return the goodput, the sums over all sessions, and the values of each session.

        The key `goodput` is the productive share of the time of all sessions, from 0 to 1. The key `between` has the
        seconds between the sessions. These seconds do not lower the goodput.
        """
        rows = [session.to_dict() for session in self.sessions]
        whole = sum(row["seconds"] for row in rows)
        sums = {name: sum(row[name] for row in rows) for name in (*PARTS, "lost_steps")}
        ends = [session.began + session.seconds for session in self.sessions]
        pauses = (after.began - end for after, end in zip(self.sessions[1:], ends))
        return {
            "version": VERSION,
            "goodput": sums["productive"] / whole if whole else 0.0,
            "seconds": whole,
            **sums,
            "between": sum(max(0.0, pause) for pause in pauses),
            "sessions": rows,
        }


def described(values: Mapping[str, Any]) -> str:
    """Return the goodput as one line of text. `values` is the result of `Goodput.to_dict`."""
    number = len(values["sessions"])
    parts = [
        f"{name.replace('_', '-')} {duration(values[name])}"
        for name in PARTS[1:]
        if values[name] >= 0.005 * values["seconds"]
    ]
    if values["lost_steps"]:
        parts = [part for part in parts if not part.startswith("lost")]
        parts.append(f"lost {duration(values['lost'])} ({values['lost_steps']:,} steps)")
    of = f"{values['goodput']:.0%} of {duration(values['seconds'])} in {number} session{'s' * (number > 1)}"
    return of + (f"; {', '.join(parts)}" if parts else "")


def read_goodput(folder: Path | str, since: float = 0.0) -> Goodput | None:
    """Read the goodput of the last run in an output folder; None if the folder has no record of a run.

    Args:
        folder: the output folder.
        since: when the run began, in seconds since 1970. If all records are older, the result is None.
    """
    try:
        lines = (Path(folder) / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = goodput_of(_records(lines))
    sessions = found.sessions
    return found if sessions and sessions[-1].began + sessions[-1].seconds >= since else None


def _records(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError):  # a killed process or a full disk can leave an incomplete line
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


def goodput_of(records: Iterable[Mapping[str, Any]]) -> Goodput:
    """Compute the goodput of the last run in the records. A session that does not resume starts a new run.

    Args:
        records: the records that `MeasureGoodput` wrote, the oldest first. The function skips damaged records.
    """
    sessions: list[Session] = []
    for record in records:
        with suppress(KeyError, TypeError, ValueError):  # a record of another version
            if record["what"] == "start":
                sessions = _resumed(sessions, record)
            else:
                _add(sessions, record)
    return Goodput(sessions)


def _resumed(sessions: list[Session], record: Mapping[str, Any]) -> list[Session]:
    """Return the sessions of the run to which a new session belongs, with the new session as the last one.

    If the new session resumes from step N, the work of earlier sessions after step N counts as lost. If the new session
    starts a new run, the result has only the new session.

    Args:
        sessions: the sessions so far.
        record: the first record of the new session.
    """
    step = int(record["step"])
    parts = {name: float(record.get(name, 0.0)) for name in MEASURED}
    new = Session(str(record["session"]), float(record["began"]), [Point(step, float(record["seconds"]), parts)])
    # A session that starts at step 0 belongs to the same run only if it resumes a run that had not ended: that run had
    # no checkpoint yet, so all its work is lost.
    if not step and not (record["resumes"] and sessions and sessions[-1].ended != "ended"):
        return [new]
    for session in reversed(sessions):
        session.keep(step)
        if session.points[0].step <= step:
            break
    return [*sessions, new]


def _add(sessions: list[Session], record: Mapping[str, Any]) -> None:
    """Add a record to the last session as a `Point`. Ignore a record with the id of another session.

    A record may have the seconds of the parts in `MEASURED`, such as `saving`. If a part is missing in the record, the
    new `Point` gets the seconds of the previous `Point`.
    """
    for session in sessions[-1:]:
        if session.id == record["session"]:
            before = session.points[-1].parts
            parts = {name: float(record.get(name, before[name])) for name in MEASURED}
            session.points.append(Point(int(record["step"]), float(record["seconds"]), parts))
            if record["what"] == "end":
                session.ended = str(record.get("how", "ended"))
