"""Read which steps the file of a wandb run contains, also after a crash.

Each process that writes a run writes one segment: a folder with one file.

After a header of 7 bytes, the file has the log format of LevelDB: blocks of 32 KiB with chunks. A chunk is a checksum
(4 bytes), a length (2 bytes), a kind (1 byte) and its data. The kinds are 1 (whole record), 2 (first part), 3 (middle
part) and 4 (last part). A record is a message of wandb's own protocol.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

HEADER = 7
BLOCK = 32768
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
QUIET_SECONDS = 2.0
"""The time without a write, in seconds, after which no process writes a file any more. The service writes twice in this
time."""


@dataclass(frozen=True)
class Written:
    """A summary of the rows in the file of a segment."""

    step: int = -1
    """The last step; -1 if the file has no row with a step."""
    counter: int = -1
    """The last value of wandb's own row number, `_step`; -1 if the file has no row."""
    rows: int = 0
    """The number of rows of the last step."""
    readable: bool = False
    """Whether the file has the record that describes the run. `wandb sync` needs this record."""


def records(path: Path, start: int = 0) -> Iterator[Any]:
    """Yield the complete records of a file.

    The function stops at an incomplete record, which a crash can leave.

    Args:
        path: the `.wandb` file.
        start: the byte at which the function begins to read: a multiple of `BLOCK`, the size of a block in bytes.
    """
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    position, parts = (HEADER if start == 0 else 0), []
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + HEADER])
        chunk = data[position + HEADER : position + HEADER + length]
        if kind not in (WHOLE, FIRST, MIDDLE, LAST) or len(chunk) < length:
            return
        position += HEADER + length
        if kind in (WHOLE, FIRST):
            parts = [chunk]
        elif parts:
            parts.append(chunk)  # in the first block that is read, the end of an earlier record has no start
        if kind in (WHOLE, LAST) and parts:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def last_written(path: Path, axis: str) -> Written:
    """Return the last step in the file of a run, the number of rows of this step, and wandb's last row number.

    The function reads the file from its end, so it is also fast for a long run.

    Args:
        path: the `.wandb` file.
        axis: the column with the step.

    Raises:
        OSError: if the file cannot be read.
    """
    try:
        size = path.stat().st_size
        readable = any(record.HasField("run") for record in _first(records(path), 5))
        counter = -1  # rows of the user may follow, which have no step
        for block in range(size // BLOCK, -1, -1):
            steps = []
            for record in records(path, block * BLOCK):
                if record.HasField("history"):
                    values = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                    counter = max(counter, int(record.history.step.num))
                    steps.append(int(float(values.get(axis, -1))))
            last = max(steps, default=-1)
            # An earlier block may have more rows of this step.
            if last >= 0 and (block == 0 or any(0 <= step < last for step in steps)):
                return Written(last, counter, steps.count(last), readable)
    except (OSError, ValueError) as error:
        raise OSError(f"The wandb file {path} cannot be read: {error}") from error
    return Written(counter=counter, readable=readable)


def wait_until_complete(folder: Path, seconds: float = 5.0) -> bool:
    """Wait until the wandb file in the folder of a finished segment has an exit record.

    Return True when the exit record appears. Return False if it does not appear within `seconds` seconds.
    """
    deadline = time.monotonic() + seconds
    while not is_complete(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def missing_rows(folder: Path, axis: str, step: int) -> str:
    """Return a warning if the file of an offline segment ends before `step` or is missing; else an empty text.

    Args:
        folder: the folder of the segment.
        axis: the column with the step.
        step: the step of the last row that trainbus passed to the package wandb.
    """
    files = sorted(folder.glob("run-*.wandb"))
    if not files:
        return f"{folder} has no run file any more, so its rows cannot be uploaded."
    last = last_written(files[0], axis).step
    if last >= step:
        return ""
    return (
        f"{files[0]} ends at step {last}, and the last row is of step {step}. The client stops writing if the disk is "
        "full. Free space, and start the program again with resume_from_checkpoint='auto': this writes the missing "
        "rows from the log history of the checkpoint."
    )


def wait_until_quiet(folder: Path) -> None:
    """Wait until no process writes to the file of a segment, for at most 4 seconds.

    The process wandb-core can run longer than the killed program that started it.
    """
    files = list(folder.glob("run-*.wandb"))
    deadline = time.monotonic() + 2 * QUIET_SECONDS
    while files and not is_complete(folder) and time.monotonic() < deadline:
        if not any(0 <= time.time() - path.stat().st_mtime < QUIET_SECONDS for path in files):
            return
        time.sleep(0.05)


def is_complete(folder: Path) -> bool:
    """Return whether the wandb file in the folder of a segment has an exit record. Without a file, return False."""
    for path in folder.glob("run-*.wandb"):
        start = path.stat().st_size // BLOCK * BLOCK
        if any(record.HasField("exit") for begin in {max(0, start - BLOCK), start} for record in records(path, begin)):
            return True
    return False


def _first(found: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        record = next(found, None)
        if record is None:
            return
        yield record
