"""Views of the columns of an Arrow table, which do not copy the values. A view makes tensors from selected rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ....events.imported import imported
from .rows import NotColumnar

_PART = 1 << 20
"""The number of offsets that are compared at once, so that a large table needs little memory."""

Span = tuple[Any, int, int]
"""The location of the values of one row: the array with all values of its chunk, the index of the row's first value in
this array, and the index after the row's last value."""


class Bits:
    """The values of a column of booleans, which Arrow packs into bits. Indexing returns an array of bool."""

    def __init__(self, array: Any) -> None:
        """View an Arrow array of booleans."""
        buffer = array.buffers()[1]
        self.packed = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
        self.offset = array.offset

    def __getitem__(self, key: Any) -> np.ndarray[Any, Any]:
        places = (np.arange(key.start, key.stop) if isinstance(key, slice) else key) + self.offset
        bits: np.ndarray[Any, Any] = self.packed[places >> 3] >> (places & 7) & 1
        return bits.astype(np.bool_)


@dataclass(frozen=True)
class Chunk:
    """A part of a column that is contiguous in memory."""

    levels: tuple[Any, ...]
    """One entry per level of nested lists, the outer level first. An entry is an array with the offsets of the lists in
    the next level, or an int: the length that all lists of the level have."""
    values: Any
    """The values of the innermost level."""
    rows: int
    """The number of rows."""

    @cached_property
    def blocks(self) -> np.ndarray[Any, Any] | None:
        """A view of all rows of the chunk as one array of shape (rows, *shape), where each row has the shape `shape`.

        None if the rows have different shapes or no values. None for booleans too, because Arrow packs them into bits.
        """
        if not isinstance(self.values, np.ndarray):
            return None
        begin, end, shape = 0, self.rows, list[int]()
        for level in self.levels:
            width = level if isinstance(level, int) else _common_length(level, begin, end)
            if not width:
                return None
            shape.append(width)
            begin = begin * width if isinstance(level, int) else int(level[begin])
            end = end * width if isinstance(level, int) else int(level[end])
        return self.values[begin:end].reshape(self.rows, *shape)

    def bounds(self, rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return where the outer list of each row begins, and where it ends: the index after its last element.

        The elements of an outer list are inner lists, or values if there are no inner lists. Both arrays have the shape
        (len(rows),).
        """
        level = self.levels[0]
        if isinstance(level, int):
            return rows * level, (rows + 1) * level
        return level[rows], level[rows + 1]

    def block(self, row: int) -> tuple[list[int], int, int]:
        """Return the shape of a row, and where its values begin and end in the attribute `values`.

        The end is the index after the last value of the row.

        Raises:
            NotColumnar: if the row has lists of different lengths, or if an outer list is empty, so that the length of
                the inner lists is unknown.
        """
        shape: list[int] = []
        begin, end = row, row + 1
        for level in self.levels:
            if isinstance(level, int):
                shape.append(level)
                begin, end = begin * level, end * level
                continue
            lengths = np.diff(level[begin : end + 1])
            if not len(lengths) or (lengths != lengths[0]).any():
                raise NotColumnar
            shape.append(int(lengths[0]))
            begin, end = int(level[begin]), int(level[end])
        return shape, begin, end


class Column:
    """A column of numbers or of lists of numbers, without nulls."""

    def __init__(self, column: Any) -> None:
        """Check the type of an Arrow column, without reading its values.

        Args:
            column: the pyarrow ChunkedArray.

        Raises:
            NotColumnar: if a row of the column is null, or if the type of the values is not bool, integer, float32 or
                float64.
        """
        self.depth, self.type = _layout(column.type)
        """The number of levels of lists, and the numpy type of the values."""
        if column.null_count:
            raise NotColumnar
        self._arrays = [chunk for chunk in column.chunks if len(chunk)]
        self._ends = np.cumsum([len(array) for array in self._arrays], dtype=np.int64)
        self._chunks: dict[int, Chunk] = {}

    def flat(self, rows: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
        """Return the values of some rows, as a tensor of shape (len(rows),).

        `rows` has the indices of the rows. Call this method only for a column without lists.
        """
        if len(self._arrays) == 1 and (taken := _taken(self._chunk(0).values, rows, dtype)) is not None:
            return taken
        tensor = torch.empty(len(rows), dtype=dtype)
        view = tensor.numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # torch casts without warnings
            for chunk, local, places in self._spread(rows):
                view[places] = chunk.values[local]
        return tensor

    def lengths(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the lengths of the outer lists of the rows with the indices `rows`, shape (len(rows),).

        Call this method only for a column of lists.
        """
        lengths = np.empty(len(rows), np.int64)
        for chunk, local, places in self._spread(rows):
            begins, ends = chunk.bounds(local)
            lengths[places] = ends - begins
        return lengths

    def spans(self, rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], list[Span]]:
        """Return the lengths of the lists of some rows, shape (len(rows),), and a list with one `Span` per row.

        `rows` has the indices of the rows. Call this method only for a column with one level of lists.
        """
        lengths = np.empty(len(rows), np.int64)
        spans: list[Any] = [None] * len(rows)
        for chunk, local, places in self._spread(rows):
            begins, ends = chunk.bounds(local)
            lengths[places] = ends - begins
            found = [(chunk.values, begin, end) for begin, end in zip(begins.tolist(), ends.tolist())]
            if isinstance(places, slice):
                return lengths, found
            for place, span in zip(places.tolist(), found):
                spans[place] = span
        return lengths, spans

    def block(self, rows: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
        """Return the nested lists of some rows as a tensor of shape (len(rows), ...).

        Raises:
            NotColumnar: if the shapes of the lists differ, or if the lists hold no values.
        """
        if len(self._arrays) == 1 and (taken := _taken(self._chunk(0).blocks, rows, dtype)) is not None:
            return taken
        if self.depth == 1:
            lengths, spans = self.spans(rows)
            shape = [int(lengths[0])]
            if (lengths != shape[0]).any():
                raise NotColumnar
        else:
            spans, shape = [], []
            for chunk, row in self._each(rows):
                found, begin, end = chunk.block(row)
                if spans and found != shape:
                    raise NotColumnar
                shape = found
                spans.append((chunk.values, begin, end))
        width = int(np.prod(shape))
        if not width:
            raise NotColumnar  # a list without values has no type in Python
        tensor = torch.empty((len(rows), width), dtype=dtype)
        fill(tensor, spans)
        return tensor.reshape(len(rows), *shape)

    def _spread(self, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Chunk, np.ndarray[Any, Any], Any]]:
        """Yield each chunk that holds some of `rows`.

        With the chunk, yield the indices of these rows in the chunk, and their positions in `rows`.
        """
        if len(self._arrays) == 1:
            yield self._chunk(0), rows, slice(None)
            return
        owners = np.searchsorted(self._ends, rows, side="right")
        for owner in np.unique(owners).tolist():
            places = np.nonzero(owners == owner)[0]
            yield self._chunk(owner), rows[places] - self._begin(owner), places

    def _each(self, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Chunk, int]]:
        """Yield for each row its chunk, and the index of the row in the chunk."""
        owners = np.searchsorted(self._ends, rows, side="right")
        for owner, row in zip(owners.tolist(), rows.tolist()):
            yield self._chunk(owner), row - self._begin(owner)

    def _begin(self, owner: int) -> int:
        return int(self._ends[owner - 1]) if owner else 0

    def _chunk(self, owner: int) -> Chunk:
        """Return the chunk with the index `owner`. The first call for an index creates the `Chunk`."""
        if owner not in self._chunks:
            self._chunks[owner] = _views(self._arrays[owner])
        return self._chunks[owner]


def _common_length(offsets: np.ndarray[Any, Any], begin: int, end: int) -> int:
    """Return the common length of the lists `begin` to `end - 1`; 0 if their lengths differ, or if there is no list.

    List number n begins at the index `offsets[n]`, and ends before the index `offsets[n + 1]`.
    """
    if begin == end:
        return 0
    width, rest = divmod(int(offsets[end]) - int(offsets[begin]), end - begin)
    if rest:
        return 0  # usual for text: no need to read all offsets
    parts = (np.diff(offsets[at : min(at + _PART, end) + 1]) for at in range(begin, end, _PART))
    return width if all((lengths == width).all() for lengths in parts) else 0


def _taken(values: Any, rows: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor | None:
    """Copy the rows of `values` at the indices `rows` into a tensor of shape (len(rows), ...).

    Return None if `values` is not an array, or if the type of the array is not `dtype`.
    """
    if not isinstance(values, np.ndarray):
        return None
    tensor = torch.empty((len(rows), *values.shape[1:]), dtype=dtype)
    view = tensor.numpy()
    if view.dtype != values.dtype:
        return None
    values.take(rows, 0, view, "clip")  # the indices are valid, and another mode makes a second copy
    return tensor


def fill(tensor: torch.Tensor, spans: Sequence[Span], side: str = "right") -> None:
    """Copy values to the rows of a tensor of shape (rows, width). The values are cast to the type of the tensor.

    Args:
        tensor: the tensor, which is changed in place. Positions without a new value keep their old value.
        spans: the values of each row.
        side: the side of the padding. 'right': the new values begin at the left end of a row. 'left': the new values
            end at the right end of a row.
    """
    view = tensor.numpy()
    width = view.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        if side == "right":
            for row, (values, begin, end) in zip(view, spans):
                row[: end - begin] = values[begin:end]
        else:
            for row, (values, begin, end) in zip(view, spans):
                row[width - (end - begin) :] = values[begin:end]


def _layout(type_: Any) -> tuple[int, np.dtype[Any]]:
    """Return the number of levels of lists of an Arrow type, and the numpy type of the values.

    Raises:
        NotColumnar: if the type of the values is not bool, integer, float32 or float64.
    """
    types: Any = imported("pyarrow").types
    depth = 0
    while True:
        type_ = getattr(type_, "storage_type", type_)
        if not (types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)):
            break
        depth, type_ = depth + 1, type_.value_type
    if types.is_boolean(type_) or types.is_integer(type_) or types.is_float32(type_) or types.is_float64(type_):
        return depth, np.dtype(type_.to_pandas_dtype())
    raise NotColumnar


def _views(array: Any) -> Chunk:
    """Return an Arrow array as a `Chunk`, without a copy. The array must have a type that `_layout` does not refuse.

    Raises:
        NotColumnar: if the array, or a list in it, contains nulls.
    """
    types: Any = imported("pyarrow").types
    levels: list[Any] = []
    rows = len(array)
    while True:
        array = getattr(array, "storage", array)  # of an extension type
        if array.null_count:
            raise NotColumnar
        if types.is_fixed_size_list(array.type):
            levels.append(array.type.list_size)
            array = array.flatten()
        elif types.is_list(array.type) or types.is_large_list(array.type):
            levels.append(array.offsets.to_numpy(zero_copy_only=True))
            array = array.values
        else:
            return Chunk((*levels,), Bits(array) if types.is_boolean(array.type) else array.to_numpy(), rows)
