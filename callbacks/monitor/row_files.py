"""JsonLines and Csv: trackers that write the logged values to a file in the output folder."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, TextIO

from ...engine.arguments import TrainingArguments
from ...engine.evaluation.outputs import recordable
from ...engine.run import Run
from ...events.recording.files import written
from ..base.line_file import LineFile, escaped, free_name, whole_lines
from ..base.row_tracker import Opening, Outcome, RowTracker, TrackerSession
from ..base.tracker_rows import AXIS

LONGEST_CELL = 2**31 - 1
"""The largest limit for the characters of a cell that `csv.field_size_limit` accepts on all systems."""


class RowFileSession(TrackerSession):
    """An open file of rows. `write` adds a whole line at once, so other programs never read a part of a line."""

    def __init__(self, path: Path, run_id: str, upto: float | None) -> None:
        """Open a file.

        Args:
            path: the file.
            run_id: the id of the run.
            upto: for a resumed run, the last step whose rows stay in the file. None: the run is new, and an earlier
                file is renamed.
        """
        self.path, self.run_id = path, run_id
        path.parent.mkdir(parents=True, exist_ok=True)
        if upto is None and path.exists() and path.stat().st_size:
            path.rename(free_name(path))
        kept = self.prepare(-1.0 if upto is None else upto)
        steps = [int(row[AXIS]) for row in kept]
        self.last_step = max(steps, default=-1)
        self.rows_of_last_step = steps.count(self.last_step)
        self._file = LineFile(path)

    def prepare(self, upto: float) -> list[dict[str, Any]]:
        """Remove an incomplete last line and the rows after step `upto` from the file. Return the rows that stay."""
        raise NotImplementedError

    def line(self, row: dict[str, Any]) -> str:
        """Return a row as a line of the file."""
        raise NotImplementedError

    def write(self, row: dict[str, Any], step: int) -> None:
        values, left_out = recordable(row)
        for name, kind in left_out.items():
            self.leave_out(name, row[name], f"the file cannot hold {kind}")
        self._file.append(self.line({name: written(value) for name, value in values.items()}))

    def finish(self, outcome: Outcome) -> None:
        self._file.close()


class JsonLinesSession(RowFileSession):
    """An open file with one JSON object per line."""

    def prepare(self, upto: float) -> list[dict[str, Any]]:
        lines = whole_lines(self.path)
        kept = _rows_upto(self.path, map(json.loads, lines), upto)
        if self.path.exists():  # truncated and not replaced, so that `tail -f` still follows the file
            os.truncate(self.path, sum(map(len, lines[: len(kept)])))
        return kept

    def line(self, row: dict[str, Any]) -> str:
        return json.dumps({AXIS: row.get(AXIS), **row}, ensure_ascii=False, allow_nan=False) + "\n"


class CsvSession(RowFileSession):
    """An open CSV file. If a row has a new column, a file with this column replaces the old file atomically."""

    columns: list[str]

    def prepare(self, upto: float) -> list[dict[str, Any]]:
        reader = _reader(io.StringIO(b"".join(whole_lines(self.path)).decode(), newline=""))
        self.columns = list(reader.fieldnames or ())
        kept = _rows_upto(self.path, reader, upto)
        if self.path.exists():
            self._replace(kept)
        return kept

    def line(self, row: dict[str, Any]) -> str:
        # Names that UTF-8 does not encode are escaped here, because the names in the file must equal `columns`.
        flat = {escaped(name).decode(): _cell(value) for name, value in {AXIS: None, **row}.items()}
        if new := [name for name in flat if name not in self.columns]:
            self._widen(new)
        return self._text([flat])

    def _widen(self, new: list[str]) -> None:
        self.path = self._file.find()  # a later run in the folder may have renamed the file
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = list(_reader(file))
        before, self.columns = self.columns, [*self.columns, *new]
        try:
            self._replace(rows)
        except OSError:
            self.columns = before  # those of the file, which stays
            raise
        self._file.reopen()

    def _replace(self, rows: list[dict[str, Any]]) -> None:
        beside = self.path.with_name(f".{self.path.name}.new")
        head = self._text([dict(zip(self.columns, self.columns, strict=True))]) if self.columns else ""
        beside.write_text(head + self._text(rows), encoding="utf-8", newline="")
        os.replace(beside, self.path)

    def _text(self, rows: list[dict[str, Any]]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self.columns, lineterminator="\n").writerows(rows)
        return text.getvalue()


@dataclass
class RowFile(RowTracker):
    """Base class of trackers that write rows to a file, on rank 0.

    A resumed run removes the rows of the steps after its checkpoint, and writes these rows again. A new run in the same
    folder renames the file of the earlier run to `metrics-1`, `metrics-2` and so on, with the same suffix.
    """

    filename: ClassVar[str] = ""
    """The name of the file in the output folder."""
    session_class: ClassVar[type[RowFileSession]] = RowFileSession
    """The class that opens and writes the file."""

    path: str | None = None
    """The path of the file. Default: `metrics.jsonl` for `JsonLines` and `metrics.csv` for `Csv`, in the output
    folder."""
    _known: str | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> RowFile:
        return cls()

    def unfinished_run(self, run: Run) -> str | None:
        return run.run_id if self._path(run).exists() else None

    def new_id(self, run: Run) -> str:
        return run.run_id or super().new_id(run)

    def connect(self, run: Run, opening: Opening) -> Callable[[], TrackerSession]:
        path, opens = self._path(run), self.session_class
        reopened = opening.run_id == self._known and not opening.resumes  # an evaluation after `trainer.end()`
        upto = math.inf if reopened else opening.step if opening.resumes else None
        self._known = opening.run_id
        return lambda: opens(path, opening.run_id, upto)

    def _path(self, run: Run) -> Path:
        return run.args.resolved(self.path or run.args.output_path / self.filename)


@dataclass
class JsonLines(RowFile):
    """Writes the logged values to the file `metrics.jsonl` in the output folder, with one line per step.

    Set `report_to="jsonl"`, or add `JsonLines()` to the callbacks. During training, you can read the file:
    `tail -f outputs/metrics.jsonl | jq -c '[."train/global_step", ."train/loss"]'`. JSON has no NaN and no infinite
    numbers. The file has the strings `NaN`, `Infinity` and `-Infinity` instead. The callback leaves out images
    and arrays.
    """

    service: ClassVar[str] = "JsonLines"
    filename: ClassVar[str] = "metrics.jsonl"
    session_class = JsonLinesSession


@dataclass
class Csv(RowFile):
    """Writes the logged values to the file `metrics.csv` in the output folder, with one line per step.

    Set `report_to="csv"`, or add `Csv()` to the callbacks. The file has one column per name. If a step has no value for
    a name, the cell is empty. `pandas.read_csv` can read the file during training.
    """

    service: ClassVar[str] = "Csv"
    filename: ClassVar[str] = "metrics.csv"
    session_class = CsvSession


def _reader(file: TextIO) -> csv.DictReader[str]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    return csv.DictReader(file)


def _rows_upto(path: Path, rows: Iterable[dict[str, Any]], upto: float) -> list[dict[str, Any]]:
    """Return the rows before the first row whose step is above `upto`.

    Raises:
        ValueError: if a row has no step.
    """
    try:
        return list(takewhile(lambda row: float(row[AXIS]) <= upto, rows))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} has a line without a column {AXIS!r}. Move the file, or set another `path`."
        ) from error


def _cell(value: Any) -> Any:
    """Return a value for a CSV cell. Lists, dicts and texts with line breaks become JSON, so a row is one line."""
    breaks = isinstance(value, str) and ("\n" in value or "\r" in value)
    return json.dumps(value, ensure_ascii=False) if breaks or isinstance(value, (dict, list)) else value
