"""Store the identity of a wandb run in a file in the output folder.

The identity contains the id of the run and the list of its segments. A segment is the part of a run that one process
wrote. The package wandb creates one folder per segment.

The file with the identity exists before the first checkpoint. The name of this file begins with `_`, so a push of the
output folder to a hub skips the file.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .run_file import Written, last_written

NAME = "_wandb_run.json"
SYNC = "_wandb_sync.sh"
MOST_RUNS = 20
"""The largest number of runs whose identities an output folder stores."""


@dataclass(frozen=True)
class Segment:
    """The part of a wandb run that one process wrote."""

    folder: str
    """The path of the folder that the client created for this segment."""
    offline: bool
    """Whether the segment was written offline, so that it needs `wandb sync`."""

    @property
    def file(self) -> Path | None:
        """The path of the `.wandb` file of the segment; None if the file does not exist."""
        return next(iter(sorted(Path(self.folder).glob("run-*.wandb"))), None)

    @property
    def synced(self) -> bool:
        """Whether `wandb sync` has nothing to do: the segment is uploaded, or has no `.wandb` file."""
        return self.file is None or self.uploaded

    @property
    def uploaded(self) -> bool:
        """Whether `wandb sync` wrote `run-*.wandb.synced`, the file that marks an uploaded segment."""
        return any(Path(self.folder).glob("run-*.wandb.synced"))


@dataclass(frozen=True)
class Identity:
    """The identity of a wandb run, with all its segments."""

    run_id: str
    """The id of the run."""
    segments: tuple[Segment, ...] = ()
    """The segments, in the order of their steps."""
    finished: bool = False
    """Whether the process that wrote the last segment ended with success. False while this process runs, and after a
    kill, a signal or an error."""
    config: dict[str, Any] = field(default_factory=dict)
    """The config with which the first segment began."""

    def with_segment(self, folder: str, offline: bool) -> Identity:
        """Return the identity with one more segment at the end."""
        return replace(self, segments=(*self.segments, Segment(folder, offline)), finished=False)

    @property
    def waiting(self) -> list[Segment]:
        """The segments that need `wandb sync` and are not empty."""
        return [part for part in self.segments if part.offline and not part.synced and _read(part).readable]

    @property
    def listed(self) -> list[Segment]:
        """The segments for the script with `wandb sync` commands.

        These are the segments in the property `waiting`, and the last segment if it is offline. The last segment may be
        empty.
        """
        waiting = self.waiting
        last = [part for part in self.segments[-1:] if part.offline and not part.uploaded]
        return [*waiting, *(part for part in last if part not in waiting)]

    def written(self, axis: str) -> Written:
        """Return a summary of the rows in all segments on this machine. `axis` is the column with the step."""
        found = [_read(part, axis) for part in self.segments]
        step = max((part.step for part in found), default=-1)
        rows = sum(part.rows for part in found if part.step == step)
        return Written(step, max((part.counter for part in found), default=-1), rows)


def _read(part: Segment, axis: str = "") -> Written:
    file = part.file
    return Written() if file is None else last_written(file, axis)


def load(folder: Path, run_id: str | None = None) -> Identity | None:
    """Read the identity of a run from an output folder; None if no earlier process stored it.

    Args:
        folder: the output folder.
        run_id: the id of the run. None: the run that was opened last.
    """
    return next((known for known in reversed(_runs(folder)) if run_id in (None, known.run_id)), None)


def load_last(folder: Path, number: int) -> Identity | None:
    """Read the identity of the run that the `Wandb` callback number `number` opened last; None if it opened no run.

    Args:
        folder: the output folder.
        number: the number of the callback among the `Wandb` callbacks of the trainer, from 1. The ids of its runs end
            with `-<number>`, but the ids of callback 1 have no number.
    """
    return next((known for known in reversed(_runs(folder)) if _number(known.run_id) == number), None)


def unfinished(folder: Path, number: int, named: str | None) -> str | None:
    """Return the id of the run that a restart without a checkpoint continues; None if there is no such run.

    A restart continues the last run if that run did not end with success, so that all attempts of one training are in
    one run. After a success, the program trains again from the start, which is a new run.

    Args:
        folder: the output folder.
        number: the number of the callback, as for `load_last`.
        named: the id that the user set, such as the environment variable `WANDB_RUN_ID`; None if the user set no id. If
            `named` is the id of another run, the result is None, and the restart opens the run `named`.
    """
    known = load_last(folder, number)
    if known is None or known.finished or named not in (None, known.run_id):
        return None
    return known.run_id


def _number(run_id: str) -> int:
    """Return N for an id of the form `<32 characters>-N`, and 1 for every other id."""
    start, _, end = run_id.partition("-")
    return int(end) if len(start) == 32 and end.isdecimal() else 1


def store(folder: Path, identity: Identity, opens: bool = False) -> None:
    """Write the identity of a run to the output folder atomically. The file also keeps up to 19 other runs.

    The function also writes a script with the `wandb sync` commands for the offline segments.

    Args:
        folder: the output folder.
        identity: the identity.
        opens: whether the run is opened now. True: the run becomes the last run in the file. False: a run that is
            already in the file keeps its place, and a new run becomes the last run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = _runs(folder)
    found = [place for place, known in enumerate(runs) if known.run_id == identity.run_id]
    if found and not opens:
        runs[found[0]] = identity
    else:
        runs = [known for known in runs if known.segments and known.run_id != identity.run_id][1 - MOST_RUNS :]
        runs.append(identity)
    text = json.dumps({**asdict(runs[-1]), "earlier": list(map(asdict, runs[:-1]))}, indent=2, default=str)
    listed = [part for known in runs for part in known.listed]
    for name, content in ((NAME, text), (SYNC, sync_script(listed))):
        staging = folder / f".{name}.{os.getpid()}"
        staging.write_text(content)
        staging.replace(folder / name)


def _runs(folder: Path) -> list[Identity]:
    """Read the identities of the runs from an output folder, in the order in which the runs were opened.

    Return [] if the file `_wandb_run.json` of the folder is missing or invalid.
    """
    try:
        stored = json.loads((folder / NAME).read_text())
        return [_identity(each) for each in (*stored.get("earlier", ()), stored)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # no file, or one that a full disk cut off: the checkpoint still has the id


def _identity(stored: dict[str, Any]) -> Identity:
    segments = tuple(Segment(part["folder"], part["offline"]) for part in stored["segments"])
    return Identity(stored["run_id"], segments, stored["finished"], stored["config"])


def sync_commands(segments: Iterable[Segment]) -> list[str]:
    """Return the `wandb sync` commands that upload segments, one per segment, in the order of `segments`."""
    return [f"wandb sync {shlex.quote(str(Path(part.folder).resolve()))}" for part in segments]


def sync_script(segments: Iterable[Segment]) -> str:
    """Return a shell script with the commands of `sync_commands`."""
    return "\n".join(
        [
            "#!/bin/sh",
            "# Uploads the offline parts of the runs of this folder. Keep the order.",
            *sync_commands(segments),
            "",
        ]
    )
