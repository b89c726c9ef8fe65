"""Compare two recordings: find the first event at which they differ. Durations, times and paths are not compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from .files import Recording
from .recorder import Record

_SESSION = frozenset({"on_init_end", "on_setup", "on_load", "on_close", "on_end"})
"""Events that come once per session. The comparison skips these events, because an interrupted run has more sessions
than an uninterrupted run."""

_SAVES = frozenset({"on_save_due", "on_save_begin", "on_snapshot", "on_save", "on_delete"})

_EPOCHS = frozenset({"on_epoch_begin", "on_epoch_end"})
_DELETIONS = frozenset({"on_delete"})
_COMMITS = frozenset({"on_commit"})
_REQUESTS = frozenset({"request", "withdraw", "veto"})

_AFTER_EVALUATION = frozenset({"on_step_begin", "on_save_due", "on_epoch_end", "on_train_end", "on_exception"})
"""Events that show that an evaluation has ended, although it had no `on_evaluate_end`."""

_TIMES = ("_runtime", "_per_second", "_seconds", "_time")
"""Suffixes of the names of durations in logs and metrics."""

_MEMORY = "_mem_"
"""The text that the names of all memory measurements contain."""

_NOT_COMPARED = frozenset({"t", "why", "session", "error"})
"""Keys of a record whose values are not compared: times, session numbers, and texts that may contain times and
paths."""

_OF_RANK = frozenset({"batch", "loss", "rng", "rng_batch", "rng_end", "python_rng", "norm"})
"""Keys of a record whose values differ between the ranks of one run."""

MEANING = {
    "batch": "the data of the batch",
    "loss": "the loss",
    "rng": "the random state before the step",
    "rng_batch": "the random state before the batch",
    "rng_end": "the random state after the step",
    "python_rng": "the random state of Python",
    "norm": "the gradient norm",
    "lr": "the learning rate",
    "logs": "a logged value",
    "metrics": "a metric",
    "state": "the state of the run",
    "f": "a flag",
    "e": "the event",
    "checkpoint": "the checkpoint",
    "asked": "who asked for it",
}
"""Key of a record -> a description of its value."""


@dataclass
class Difference:
    """The first difference between two recordings."""

    step: int
    """The number of the step in progress; between two steps, the number of the last complete step."""
    event: str
    """The event, or the action and the flag, such as `request save`."""
    what: str
    """A description of the value that differs, such as `the loss`."""
    one: Any
    """The value in the first recording, as text. `nothing more` if this recording has ended."""
    other: Any
    """The value in the second recording, as text. `nothing more` if this recording has ended."""
    before: list[str] = field(default_factory=list)
    """The last three records before the difference, as text. These records are equal in both recordings."""

    def __str__(self) -> str:
        lines = [f"step {self.step}: {self.what} differs at {self.event}: {self.one} and {self.other}"]
        if self.before:
            lines += ["Equal just before:", *(f"  {line}" for line in self.before)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain values."""
        return {
            "equal": False,
            **{name: getattr(self, name) for name in ("step", "event", "what", "one", "other", "before")},
        }


def first_difference(one: Recording, other: Recording) -> Difference | None:
    """Return the first difference between two recordings; None if the runs are equal.

    The function compares the sessions of a resumed run as one run, and skips the events that only an interruption
    causes. For recordings of two different ranks, the function skips values that always differ between ranks.
    """
    ignored = _NOT_COMPARED | (_OF_RANK if one.rank != other.rank else frozenset())
    resumed = _resumed_at(one) | _resumed_at(other)
    between_ranks = one.rank != other.rank
    # Only rank 0 deletes checkpoints. A stop saves one more checkpoint, so a stopped run deletes other checkpoints. A
    # killed run does not announce what its thread deleted just before.
    same_deletions = not between_ranks and not resumed and _saved_at(one) == _saved_at(other)
    left_out = frozenset() if same_deletions else _DELETIONS
    # A rank records a request from its own clock or signal at once. The other ranks record it at the next exchange.
    left_out |= _REQUESTS if between_ranks else frozenset()
    left_out |= _COMMITS  # only a save for which training waits records `on_commit`
    before: list[str] = []
    for left, right in zip_longest(_comparable(one, resumed, left_out), _comparable(other, resumed, left_out)):
        found = _compared(left, right, ignored)
        if found is not None:
            found.before = before
            return found
        before = [*before[-2:], describe(left)]
    return None


def _resumed_at(recording: Recording) -> set[int]:
    return {head["step"] for head in recording.sessions[1:]} | {
        head["step"] for head in recording.sessions[:1] if head["step"]
    }


def _saved_at(recording: Recording) -> set[int]:
    return {record["s"] for record in recording.records if record.get("e") == "on_save_begin"}


def _left_evaluations(records: Sequence[Record]) -> Iterator[range]:
    """Yield one range of indices in `records` for each interrupted evaluation.

    The next session repeats the whole evaluation, so the records of the interrupted evaluation are not compared.
    """
    begun = None
    for index, record in enumerate(records):
        event = record.get("e")
        if event == "on_evaluate_end":
            begun = None
        elif begun is not None and ("session" in record or event in _AFTER_EVALUATION):
            yield range(begun, index)
            begun = None
        if event == "on_evaluate_begin":
            begun = index


def _comparable(recording: Recording, resumed: set[int], left_out: frozenset[str]) -> Iterator[Record]:
    """Yield the records to compare.

    Leave out the records that differ only because a run was interrupted, such as `on_setup`. Also leave out the records
    that `left_out` names.

    A recording stores only the changes of the state. The yielded records of `on_step_end`, `on_evaluate_end`,
    `on_epoch_end` and `on_log` have the whole state. All other yielded records have no state.

    Args:
        recording: the recording.
        resumed: the steps from which at least one of the two compared runs resumed.
        left_out: names of events and of actions on flags, such as `on_commit` and `veto`.
    """
    session = 0
    state: dict[str, Any] = {}
    left = {place for places in _left_evaluations(recording.records) for place in places}
    for index, record in enumerate(recording.records):
        event = record.get("e", "")
        state.update(record.get("state", {}))
        session = record.get("session", session)
        if event in _SESSION or (event == "on_train_begin" and recording.sessions[session]["step"] > 0):
            continue
        if event in left_out or record.get("do") in left_out or (index in left and "e" in record):
            continue
        # A stop ends the epoch and saves. The resumed session begins the epoch again.
        if record["s"] in resumed and (
            event in _SAVES or event in _EPOCHS or record.get("f") in ("save", "training_stop")
        ):
            continue
        if event and record["s"] in resumed:  # the resumed session repeats an evaluation in another event
            record = {name: value for name, value in record.items() if name != "in"}
        if event in ("on_step_end", "on_evaluate_end", "on_epoch_end", "on_log"):
            record = {**record, "state": {name: value for name, value in state.items() if "checkpoint" not in name}}
        else:
            record = {name: value for name, value in record.items() if name != "state"}
        yield record


def _compared(left: Record | None, right: Record | None, ignored: frozenset[str]) -> Difference | None:
    if left is None or right is None:
        here = left or right or {}
        return Difference(here["s"], _name(here), "the end", _name(left), _name(right))
    step = min(left["s"], right["s"])
    for name in ("f" if "f" in left or "f" in right else "e", "s", "do", "by", "in"):
        if left.get(name) != right.get(name):
            flags = [each for each in (left, right) if "f" in each]
            flag = next((each for each in flags if each["do"] not in ("take", "drop")), flags[0] if flags else None)
            return Difference(step, _name(flag or left), MEANING["f" if flag else "e"], *_texts(left, right))
    for name in [*left, *(name for name in right if name not in left)]:
        if name in ignored:
            continue
        found = _values(name, left.get(name), right.get(name))
        if found is not None:
            return Difference(step, _name(left), MEANING.get(name, name), *found)
    return None


def _values(name: str, left: Any, right: Any) -> tuple[str, str] | None:
    """Return both values of `name` as text if they differ; None if they are equal.

    For two dicts, each text has only the items that differ. Durations, memory and paths in dicts are not compared.
    """
    if left == right:
        return None
    if not (isinstance(left, dict) and isinstance(right, dict)):
        return str(left), str(right)
    keys = [key for key in dict.fromkeys([*left, *right]) if left.get(key) != right.get(key) and _counts(key, left)]
    if not keys:
        return None
    return tuple(", ".join(f"{key}={values.get(key)}" for key in keys) for values in (left, right))  # type: ignore[return-value]


def _counts(key: str, values: dict[str, Any]) -> bool:
    path = isinstance(values.get(key), str) and ("/" in values[key] or "\\" in values[key])
    return not (key.endswith(_TIMES) or _MEMORY in key or path)


def _name(record: Record | None) -> str:
    if record is None:
        return "nothing more"
    return record["e"] if "e" in record else f"{record['do']} {record['f']}"


def _texts(left: Record, right: Record) -> tuple[str, str]:
    return describe(left), describe(right)


def describe(record: Record | None) -> str:
    """Return a record as one line of text; `nothing more` for None."""
    if record is None:
        return "nothing more"
    if "f" in record:
        why = f": {record['why']}" if record.get("why") else ""
        return f"step {record['s']}: {record['by']} {record['do']} {record['f']} in {record['in'] or 'the loop'}{why}"
    by = f" by {record['by']}" if "by" in record else ""
    return f"step {record['s']}: {record['e']}{by}"


def text_of(records: Iterable[Record]) -> str:
    """Return records as text, one line per record."""
    return "".join(f"{describe(record)}\n" for record in records)
