"""The file of a recording, in the format JSON Lines.

The events of a step share one line if no other record, such as the write of a flag, comes between them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import TrainbusError
from .recorder import Record

VERSION = 1
"""The version of the file format."""

NAME = "events.jsonl"
"""The file of rank 0 in the output folder."""

_LISTED = {"on_batch": ("batch", "rng_batch"), "on_substep_end": ("loss",), "on_gradients": ("loss",)}
"""Event of a step -> keys of the line of the step whose values are lists. The event may come several times in a step.
Each record of the event adds one value to each list."""

_OF_STEP = {
    "on_step_begin": ("rng",),
    "on_pre_optimizer_step": ("norm",),
    "on_step_end": ("rng_end", "lr", "state"),
}
"""Event of a step -> keys of the line of the step with a single value."""

RESTARTS = frozenset(
    {
        *("on_step_begin", "on_epoch_begin", "on_epoch_end", "on_train_end", "on_exception", "on_close"),
        *("on_log_due", "on_evaluate_due", "on_save_due"),
    }
)
"""The events after a save that a run announces again when it resumes from this save."""


class RecordingError(TrainbusError):
    """A recording cannot be read."""


def file_name(rank: int) -> str:
    """Return the name of the file of a rank: `events.jsonl` for rank 0, `events-rank1.jsonl` for rank 1."""
    return NAME if rank == 0 else f"events-rank{rank}.jsonl"


class Encoder:
    """Turns records into lines of JSON.

    Most steps have the same sequence of events. The encoder writes each sequence once, with a number. In the line of a
    step, this number replaces the sequence.
    """

    def __init__(self) -> None:
        """Create the encoder for one session of a recording."""
        self._patterns: dict[tuple[str, ...], int] = {}

    def lines(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield the lines of records. The method changes the records.

        A record of a whole step has the names of its events under the key `p`. The line of this record has a number
        instead. If these names occur for the first time, another line comes first. It has the number and the names.
        """
        for record in records:
            if "p" in record:
                events = record["p"]
                number = self._patterns.get(events)
                if number is None:
                    number = self._patterns[events] = len(self._patterns)
                    yield _line({"pattern": number, "events": list(events)})
                record["p"] = number
            yield _line(record)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


def _line(record: Record) -> str:
    if "t" in record:
        record["t"] = round(record["t"], 6)
    try:
        return _encode(record) + "\n"
    except ValueError:  # a number that is not finite
        return _encode(written(record)) + "\n"


def written(value: Any) -> Any:
    """Convert NaN and infinite numbers in a value to the strings `NaN`, `Infinity` and `-Infinity`, for JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: written(part) for name, part in value.items()}
    return [written(part) for part in value] if isinstance(value, (list, tuple)) else value


def number(value: Any) -> Any:
    """Convert the string `NaN`, `Infinity` or `-Infinity` to a float. Return any other value unchanged."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


@dataclass
class Recording:
    """The content of a recording, which `read` returns."""

    path: Path
    """The file."""
    sessions: list[dict[str, Any]] = field(default_factory=list)
    """The first line of each session, decoded. This line has the key `recording`."""
    records: list[Record] = field(default_factory=list)
    """The records of all sessions in order. The first record of each session has the key `session` with the index of
    the session in `sessions`."""

    @property
    def rank(self) -> int:
        """The rank that wrote the recording."""
        return int(self.sessions[0].get("rank", 0)) if self.sessions else 0


def decoded(lines: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    """Yield the records of decoded lines. The line of a step gives one record per event of the step.

    The function also yields the first line of each session, which has the key `recording`.
    """
    patterns: dict[int, list[str]] = {}
    for line in lines:
        if "recording" in line:
            patterns = {}
            yield dict(line)
        elif "pattern" in line:
            patterns[line["pattern"]] = line["events"]
        elif "p" in line:
            yield from records_of_step(line, patterns[line["p"]])
        else:
            yield dict(line)


def records_of_step(line: Mapping[str, Any], events: Sequence[str]) -> Iterator[Record]:
    """Yield one record for each event of a step.

    Args:
        line: the decoded line of the step.
        events: the names of the events of the step, in order. The line itself refers to this list by a number.
    """
    lists = {name: iter(line.get(name, ())) for names in _LISTED.values() for name in names}
    for index, event in enumerate(events):
        record: Record = {"e": event, "s": line["s"], "t": line["t"]}
        if index:
            record["t"] = round(line["t"] + line["d"][index - 1] / 1e6, 6)
        for name in _LISTED.get(event, ()):
            if (value := next(lists[name], None)) is not None:
                record[name] = value
        record |= {name: line[name] for name in _OF_STEP.get(event, ()) if name in line}
        yield record


def find(path: Path, rank: int = 0) -> Path:
    """Return the file of a recording.

    Args:
        path: the file, or the output folder of a run.
        rank: the rank that wrote the recording, if `path` is a folder.

    Raises:
        RecordingError: if there is no recording.
    """
    found = path / file_name(rank) if path.is_dir() else path
    if not found.is_file():
        raise RecordingError(
            f"There is no recording {found}. `TrainingArguments(record=True)` writes one into the output folder."
        )
    return found


def read(path: Path) -> Recording:
    """Read a recording: a file, or the output folder of a run.

    A killed process can leave an incomplete last line. The function ignores this line.

    Raises:
        RecordingError: if there is no recording, if a line is not a record, or if a later version wrote the file.
    """
    path = find(path)
    recording = Recording(path)
    session: int | None = None
    for record in _records(path):
        if "recording" in record:
            if not isinstance(record["recording"], int) or record["recording"] > VERSION:
                raise RecordingError(
                    f"{path} has version {record['recording']}, but this release reads versions up to {VERSION}. "
                    "Install the release that wrote it."
                )
            session = len(recording.sessions)
            recording.sessions.append(record)
            continue
        if session is not None:
            record["session"], session = session, None
        recording.records.append(record)
    if not recording.sessions:
        raise RecordingError(f"{path} is not a recording: it has no line with the key 'recording'.")
    return recording


def _records(path: Path) -> Iterator[Record]:
    lines, headed = 0, False

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal lines
        for value in _objects(path):
            lines += 1
            yield value

    try:
        for record in decoded(counted()):
            headed = headed or "recording" in record
            if headed and not ("recording" in record or ("s" in record and ("e" in record or "f" in record))):
                raise KeyError("s")
            yield record
    except (KeyError, TypeError, IndexError) as error:
        raise RecordingError(
            f"{path}:{lines} is damaged: {type(error).__name__}: {error}. Lines before it may be missing."
        ) from error


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes().split(b"\n")[:-1]
    for index, line in enumerate(data, 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise RecordingError(f"{path}:{index} is not a line of a recording: {error}.") from error
        if not isinstance(value, dict):
            raise RecordingError(f"{path}:{index} is not a line of a recording: it is not a JSON object.")
        yield value


def length_upto(lines: list[bytes], step: int) -> int:
    """Return the number of lines that a recording keeps when its run resumes from a step.

    If the run did not save at this step, the recording keeps all lines before the first line of a later step.

    If the run saved at this step, the recording keeps:

    - all lines up to the last save of this step
    - the lines after this save, until the first flag write or the first event in `RESTARTS`. The resumed run writes
      this flag write or event again.
    """
    saved, behind = None, None
    records = [json.loads(line) for line in lines]
    for index, record in enumerate(records):
        at = record.get("s", 0)
        if at > step and behind is None:
            behind = index
        if behind is None and record.get("e") in ("on_snapshot", "on_save") and at == step:
            saved = index
    if saved is None:
        return len(lines) if behind is None else behind
    following = range(saved + 1, len(records))
    return next((index for index in following if _restarts(records[index])), len(records))


def _restarts(record: Mapping[str, Any]) -> bool:
    if "f" in record or "e" not in record:
        return True
    return record["e"] in RESTARTS
