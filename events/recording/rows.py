"""The decisions of a run, such as a save, derived from the records of the run.

Each decision is a row. The rows of a correct preview equal the rows of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from operator import itemgetter
from typing import Any

from .recorder import Record

Row = dict[str, Any]
"""One decision: a dict with the keys `step`, `what`, `by`, `reason`. Some kinds have more keys: see `Rows`."""

WORK = ("log", "evaluate", "save", "delete", "load_best", "stop")
"""The kinds of rows."""


class Rows:
    """Derives rows (the decisions of a run) from records (its events and flag writes), one record at a time.

    Each row has these keys:

    - `step`: the number of completed steps,
    - `what`: the kind of the decision: `log`, `evaluate`, `save`, `delete`, `load_best` or `stop`,
    - `by`: the ids of the callbacks that requested the work, joined by commas,
    - `reason`: why these callbacks requested the work,
    - `learning_rate`: only in `log`, if the log has a learning rate,
    - `checkpoint`: the step of the checkpoint, only in `delete` and `load_best`.
    """

    def __init__(self) -> None:
        """Create the object. It has no records at first."""
        self._asked: dict[str, dict[str, str]] = {}
        self._taken: dict[str, dict[str, str]] = {}

    def take(self, record: Record) -> list[Row]:
        """Read the next record. If the record has a decision, such as a save, return a list of one row; else []."""
        if "session" in record:  # a request of the earlier session was not taken before the save that it resumes from
            self._asked, self._taken = {}, {}
        if "f" in record:
            self._flag(record)
            return []
        event, step = record["e"], record["s"]
        match event:
            case "on_log" if record.get("in") == "on_log_due":
                row = self._served(step, "log", record)
                rate = record.get("logs", {}).get("learning_rate")
                return [row if rate is None else {**row, "learning_rate": rate}]
            case "on_evaluate_begin":
                return [self._served(step, "evaluate", record)]
            case "on_save":
                asked = self._taken.get("save", {})
                return [_row(step, "save", asked)]
            case "on_delete":
                why = f"not kept after step {record['saved']}"
                by = {record.get("by", "run"): why}
                return [_row(record["saved"], "delete", by, checkpoint=record["checkpoint"])]
            case "on_best_loaded":
                by = {record.get("by", "run"): f"the best model is of step {record['checkpoint']}"}
                return [_row(step, "load_best", by, checkpoint=record["checkpoint"])]
            case "on_train_end":
                stop = self._taken.get("training_stop") or {"run": "all epochs are done"}
                return [_row(step, "stop", stop)]
        return []

    def _flag(self, record: Record) -> None:
        flag, author = record["f"], record["by"]
        asked = self._asked.setdefault(flag, {})
        match record["do"]:
            case "request":
                asked[author] = record.get("why", "")
            case "withdraw":
                asked.pop(author, None)
            case "take" | "drop":
                self._taken[flag], self._asked[flag] = asked, {}

    def _served(self, step: int, what: str, record: Record) -> Row:
        """Build the row for a log or an evaluation. `what` is `log` or `evaluate`.

        The row names the callbacks that requested the work.
        """
        worker, inside = record.get("by", "run"), record.get("in", "")
        asked = self._taken.get(what, {}) if inside == f"on_{what}_due" else {worker: f"in {inside}" if inside else ""}
        return _row(step, what, {worker: asked[worker]} if worker in asked else asked)


def _row(step: int, what: str, asked: dict[str, str], **more: Any) -> Row:
    reasons = dict.fromkeys(filter(None, (asked[author] for author in sorted(asked))))
    return {"step": step, "what": what, "by": ", ".join(sorted(asked)), "reason": "; ".join(reasons), **more}


def rows_of(records: Iterable[Record]) -> list[Row]:
    """Derive the rows of a run from its records, in the order of steps. Rows of one step keep the order of records."""
    rows = Rows()
    found = [row for record in records for row in rows.take(record)]
    found = _without_repeated_stops(found)
    return sorted(found, key=lambda row: row["step"])


def _without_repeated_stops(rows: list[Row]) -> list[Row]:
    """Return the rows without the `stop` rows of earlier sessions. The last `stop` row stays."""
    last = max((index for index, row in enumerate(rows) if row["what"] == "stop"), default=-1)
    return [row for index, row in enumerate(rows) if row["what"] != "stop" or index == last]


def kept_of(rows: Iterable[Row], before: Iterable[int] = ()) -> list[int]:
    """Return the steps of the checkpoints that exist after the last row, in ascending order.

    Args:
        rows: the rows of a run, as `rows_of` returns. The function reads the rows of the kinds `save` and `delete`.
        before: the steps of the checkpoints that exist before the first row.
    """
    kept = dict.fromkeys(before)
    for row in rows:
        if row["what"] == "save":
            kept[row["step"]] = None
        elif row["what"] == "delete":
            kept.pop(row["checkpoint"], None)
    return sorted(kept)


def difference(planned: list[Row], found: list[Row]) -> list[str]:
    """Compare two lists of rows, and return the differences as lines of text, in the order of steps.

    A line that starts with `- ` is a row that is only in `planned`. A line that starts with `+ ` is a row that is only
    in `found`. The list is empty if the rows are equal.
    """
    mine, others = (list(map(described, rows)) for rows in (planned, found))
    lines: list[tuple[int, str]] = []
    # not `difflib.ndiff`, which compares the characters of all lines that differ: 1,000 lines take minutes
    for kind, start, end, first, last in SequenceMatcher(None, mine, others, autojunk=False).get_opcodes():
        if kind != "equal":
            removed = [(planned[at]["step"], f"- {mine[at]}") for at in range(start, end)]
            added = [(found[at]["step"], f"+ {others[at]}") for at in range(first, last)]
            lines += sorted([*removed, *added], key=itemgetter(0))
    return [text for _, text in lines]


def described(row: Row) -> str:
    """Return a row as one line of text, such as `step 20: save by Checkpoint`."""
    more = "".join(f" {name}={row[name]}" for name in ("checkpoint",) if name in row)
    return f"step {row['step']}: {row['what']}{more} by {row['by'] or 'run'}"
