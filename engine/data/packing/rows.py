"""Functions that decide which samples share a row of a packed batch. They read only the lengths of the samples."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

STRATEGIES = ("best_fit", "first_fit", "flatten")
"""The values of `Packing.strategy`."""


def packed_rows(lengths: Sequence[int], capacity: int, strategy: str) -> list[list[int]]:
    """Distribute samples over the rows of a packed batch. The result depends on the arguments only.

    Args:
        lengths: tokens of each sample, at most `capacity`.
        capacity: the largest number of tokens in a row. `flatten` ignores it.
        strategy: `best_fit` places the samples from the longest to the shortest. Each sample goes into the fullest row
            that has room for the sample. Then the samples are distributed again over the same number of rows, so that
            the rows have similar lengths. The second result is used if its longest row is shorter. `first_fit` places
            the samples in order. Each sample goes into the first row that has room for the sample. `flatten` puts all
            samples into one row.

    Returns:
        The indices of the samples by row. Samples are in order within a row. Rows are in order of their first sample.
    """
    if strategy == "flatten":
        return [[*range(len(lengths))]]
    if strategy == "first_fit":
        return _first_fit(lengths, capacity)
    rows = _best_fit(lengths, capacity)
    evened = _evened(lengths, len(rows))
    rows = min(rows, evened, key=lambda each: width_of(lengths, each))
    return sorted(sorted(row) for row in rows)


def width_of(lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens of the longest row. `lengths` has the number of tokens of each sample."""
    return max(sum(lengths[sample] for sample in row) for row in rows)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda sample: -lengths[sample])


def _best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # the free tokens of each row and its index, sorted
    for sample in _longest_first(lengths):
        place = bisect_left(room, (lengths[sample], -1))
        if place == len(room):
            rows.append([])
            room.append((capacity, len(rows) - 1))
            place = len(room) - 1
        left, row = room.pop(place)
        rows[row].append(sample)
        insort(room, (left - lengths[sample], row))
    return rows


def _first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[int] = []
    for sample, length in enumerate(lengths):
        row = next((row for row, left in enumerate(room) if left >= length), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(capacity)
        rows[row].append(sample)
        room[row] -= length
    return rows


def _evened(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Distribute samples over `count` rows of similar length, and return the indices of the samples by row.

    The samples are placed from the longest to the shortest, each into the row with the fewest tokens. `lengths` has the
    number of tokens of each sample.
    """
    rows: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, row) for row in range(count)]
    for sample in _longest_first(lengths):
        tokens, row = filled.pop(0)
        rows[row].append(sample)
        insort(filled, (tokens + lengths[sample], row))
    return rows
