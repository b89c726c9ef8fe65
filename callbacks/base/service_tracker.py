"""ServiceTracker: the base class of trackers for services that cannot return the rows of a run.

A file in the output folder stores the last written step, so that a resumed run does not write a step twice.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from .row_tracker import Opening, Outcome, RowTracker, TrackerSession
from .tracker import numbered

logger = logging.getLogger(__name__)

_LARGEST = 1 << 1023
"""Integers from this number on may be too large for a float."""

FOLDER = ".trackers"
"""The name of a folder in the output folder. The folder has one file per run of a tracker, with the last written
step."""


class ServiceSession(TrackerSession):
    """An open run of a service. It stores the last written step in a file, which stays if the process is killed.

    A subclass implements `log`, `tell` and `close`.
    """

    def __init__(self, run_id: str, owned: bool = True) -> None:
        """Store the id of an open run.

        Args:
            run_id: the id under which the service knows the run.
            owned: whether this session closes the run. False for a run that the user opened.
        """
        self.run_id, self.owned = run_id, owned
        self.record: Path | None = None
        self._reached, self._rows = -1, 0

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send a row to the service: name -> number, at a step. The method `write` calls this method."""
        raise NotImplementedError

    def tell(self, name: str, value: Any) -> None:
        """Write a value that describes the whole run, such as `train_runtime`."""
        raise NotImplementedError

    def close(self, outcome: Outcome) -> None:
        """Close the run. `outcome` says how the training ended."""
        raise NotImplementedError

    def write(self, row: dict[str, Any], step: int) -> None:
        self.log(dict(numbers_of(row, skipped=self.leave_out)), step)
        if step >= self._reached:
            self._reached, self._rows = step, self._rows + 1 if step == self._reached else 1
        if self.record is not None:
            _keep(self.record, self._reached, self._rows)

    def continue_after(self, step: int, rows: float) -> None:
        """Make `has` return True for rows that an earlier process wrote, so that no row is written twice.

        These rows are the rows before `step`, and the first `rows` rows of `step`. If `rows` is infinite, an earlier
        process wrote all rows of `step`.
        """
        self.last_step, self.rows_of_last_step = step, rows
        self._reached, self._rows = step, 0 if rows == math.inf else int(rows)

    def summarize(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.tell(name, value)

    def finish(self, outcome: Outcome) -> None:
        if self.owned:
            self.close(outcome)


@dataclass
class ServiceTracker(RowTracker):
    """Base class of trackers that report numbers to a service. A resumed run does not write a step twice.

    A subclass implements `open_session`.
    """

    project: str | None = None
    """The project. Default: the service chooses the project."""
    name: str | None = None
    """The name of the run. Default: `args.run_name`; without it, the service chooses a name."""
    options: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Additional options for the function of the service that opens the run. These options override the options that
    this callback sets."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ServiceTracker:
        return cls(args.project, args.run_name)

    def new_id(self, run: Run) -> str:
        return numbered(run.run_id, self, run) if run.run_id else super().new_id(run)

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        """Open the tracker's run with the id `opening.run_id`. The worker thread calls this method.

        Args:
            opening: the id of the tracker's run, and how often this run was resumed.
            name: the name of the tracker's run. None: the service chooses a name.
            config: the training arguments. Write them only to a new run, because a resumed run already has them.

        Returns:
            The object that writes to the tracker's run.
        """
        raise NotImplementedError

    def connect(self, run: Run, opening: Opening) -> Callable[[], TrackerSession]:
        folder = Path(run.args.output_path) / FOLDER
        name, config = self.name or run.args.run_name, run.args.to_sanitized_dict()
        record = folder / f"{self.service.lower()}-{numbered(run.run_id or 'evaluation', self, run)}"

        def open_session() -> TrackerSession:
            with contextlib.suppress(OSError):  # the run works without the record
                folder.mkdir(parents=True, exist_ok=True)
            session = self.open_session(opening, name, config)
            session.record = record
            if opening.resumes:
                session.continue_after(*_kept(record, opening.step))
            return session

        return open_session


def _keep(record: Path, step: int, rows: int) -> None:
    beside = record.with_suffix(".new")
    try:
        beside.write_text(f"{step} {rows}", encoding="utf-8")
        os.replace(beside, record)
    except OSError as error:  # the service has the row: an error here would make the worker write it again
        logger.debug("The last written step cannot be kept in %s: %s", record, error)


def _kept(record: Path, default: int) -> tuple[int, float]:
    try:
        step, *rows = map(int, record.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # no file, or one that a full disk cut off
        return default, math.inf
    return step, rows[0] if rows else math.inf


def numbers_of(
    row: Mapping[str, Any], above: str = "", skipped: Callable[[str, Any, str], None] | None = None
) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row as pairs of name and number. Skip other values.

    For example, the row {"a": {"b": 1}} gives ("a/b", 1).

    Args:
        row: name -> value.
        above: the text before each name.
        skipped: a function that receives the name of each skipped value, the value, and the reason. It does not receive
            None, which stands for a missing value.
    """
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers_of(value, f"{above}{name}/", skipped)
            continue
        number = value.item() if getattr(value, "ndim", None) == 0 else value
        if isinstance(number, (bool, float)) or (isinstance(number, int) and abs(number) < _LARGEST):
            yield f"{above}{name}", number
        elif skipped is not None and value is not None:
            large = "the number is too large" if isinstance(number, int) else "only numbers are recorded"
            skipped(f"{above}{name}", value, large)
