"""The ledger: all writes to the control, with author and reason."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .flags import flag_named


@dataclass(frozen=True)
class Entry:
    """One write to a flag of the control, or one failure of a callback."""

    step: int
    """The number of completed optimizer steps."""
    event: str
    """The event whose handler made the write; empty outside of events."""
    author: str
    """The id of the callback or function that made the write; `you` for code outside of handlers; `run` for the run
    itself."""
    flag: str
    """The flag, without `should_`; `callback` for a failure or quarantine of the author."""
    action: str
    """`request`, `veto`, `withdraw`, `take` (the run acts on the request) or `drop` (a veto blocked the request). If
    `flag` is `callback`: `fail`, `retry`, `over budget`, `thin` (called at fewer steps) or `quarantine`."""
    old: bool
    """Whether the flag was requested and not vetoed before the write."""
    new: bool
    """Whether the flag is requested and not vetoed after the write."""
    reason: str = ""
    """The reason that the author gave."""
    rank: int = 0
    """The rank that made the write."""

    def __str__(self) -> str:
        change = "" if self.old == self.new else f" ({self.old} -> {self.new})"
        where = f" in {self.event}" if self.event else ""
        why = f": {self.reason}" if self.reason else ""
        return f"step {self.step}: {self.author} {self.action} {self.flag}{change}{where}{why}"


class Ledger:
    """The newest entries of each flag.

    The number of entries per flag is limited, so that the memory of a long run stays bounded. Each flag has its own
    limit, so thousands of log requests do not remove a stop request.
    """

    def __init__(self, keep: int = 200) -> None:
        """Keep the newest `keep` entries of each flag."""
        self._keep = keep
        self._serial = 0
        self._entries: dict[str, deque[tuple[int, Entry]]] = {}
        self.watchers: list[Callable[[Entry], None]] = []
        """Functions that are called with each new entry. A recording uses them."""

    def write(self, entry: Entry) -> None:
        """Add one entry."""
        self._serial += 1
        self._entries.setdefault(entry.flag, deque(maxlen=self._keep)).append((self._serial, entry))
        for watch in self.watchers:
            watch(entry)

    @property
    def written(self) -> int:
        """The number of entries ever written, deleted ones included."""
        return self._serial

    def since(self, written: int) -> list[Entry]:
        """Return the stored entries with a number above `written`, oldest first. The first entry has the number 1."""
        kept = [pair for entries in self._entries.values() for pair in entries if pair[0] > written]
        return [entry for _, entry in sorted(kept, key=lambda pair: pair[0])]

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all stored entries, oldest first."""
        kept = [pair for entries in self._entries.values() for pair in entries]
        return iter([entry for _, entry in sorted(kept, key=lambda pair: pair[0])])

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._entries.values())

    def of(self, flag: str) -> list[Entry]:
        """Return the stored entries of one flag, oldest first.

        Args:
            flag: a flag, such as `save` or `should_save`. `callback` returns the failures of callbacks.

        Raises:
            ArgumentError: if no flag has this name. The error shows the nearest known name.
        """
        name = flag if flag in self._entries or flag == "callback" else flag_named(flag)
        return [entry for _, entry in self._entries.get(name, ())]

    def to_list(self) -> list[dict[str, Any]]:
        """Return the entries as plain values, for the checkpoint."""
        return [asdict(entry) for entry in self]

    def load_list(self, entries: list[Mapping[str, Any]]) -> None:
        """Replace all entries by `entries`, a list that `to_list` returned.

        The method ignores unknown keys of an entry, which a later version may have written.
        """
        known = {field.name for field in fields(Entry)}
        self._entries.clear()
        watchers, self.watchers = (
            self.watchers,
            [],
        )  # an earlier session wrote these entries, so watchers must not see them again
        for entry in entries:
            self.write(Entry(**{key: value for key, value in entry.items() if key in known}))
        self.watchers = watchers

    def __str__(self) -> str:
        return "\n".join(str(entry) for entry in self) or "(no flag was raised)"

    def __repr__(self) -> str:
        return f"<Ledger with {len(self)} entr{'y' if len(self) == 1 else 'ies'}: `print` shows them>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the entries in a notebook and in IPython."""
        printer.text(str(self))
