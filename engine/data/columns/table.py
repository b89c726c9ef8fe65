"""Columns, row order and value types of a `datasets.Dataset`, from which batches are made."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ....events.imported import imported
from .arrow import Column, Span, fill
from .rows import BatchRows, NotColumnar

_PLAIN = frozenset({"Value", "ClassLabel", "List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D", "Array5D"})
"""The feature types of `datasets` for which samples have the stored values. Other features, such as images, are
decoded."""
_STYLES = {None: "python", "python": "python", "numpy": "numpy", "torch": "torch"}
"""Supported format -> the kind of objects that its samples hold."""


class Table:
    """The columns of a `datasets.Dataset`. Each process that reads the columns creates its own `Table`."""

    def __init__(self, dataset: Any) -> None:
        """Check the format of a dataset. The method `column` checks the values of each column.

        Raises:
            NotColumnar: if the format of the dataset is not supported. Also if the format is `torch` and a column holds
                dates or times.
        """
        self.dataset = dataset
        self._format = kind, chosen, options, adds_others = _format_of(dataset)
        if kind not in _STYLES or options or adds_others:
            raise NotColumnar
        self.style = _STYLES[kind]
        self.names = tuple(name for name in dataset.column_names if chosen is None or name in chosen)
        schema = dataset.data.schema
        if self.style == "torch" and any(_is_temporal(schema.field(name).type) for name in self.names):
            raise NotColumnar  # the samples of such a dataset raise an error, also if the collator drops the column
        self.types = {name: str(schema.field(name).type) for name in self.names}
        mapping = dataset._indices
        self._order = None if mapping is None else Column(mapping.column(0))
        self._columns: dict[str, Column | None] = {}
        self._others: set[str] = set()
        self._rows = len(dataset)
        self._types: dict[tuple[str, ...], Hashable] = {}

    @property
    def is_current(self) -> bool:
        """Whether the dataset still has the format that it had when this table was created.

        `set_format` changes the format in place.
        """
        return _format_of(self.dataset) == self._format

    def places(self, indices: list[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the row of the Arrow table for each sample, shape (samples,).

        Raises:
            NotColumnar: if an index is not an integer, is negative, or is not below the number of samples.
        """
        rows = np.asarray(indices)
        if rows.ndim != 1 or rows.dtype.kind != "i" or np.minimum.reduce(rows) < 0:
            raise NotColumnar
        if np.maximum.reduce(rows) >= self._rows:
            raise NotColumnar
        return rows if self._order is None else self._order.flat(rows, torch.int64).numpy()

    def types_of(self, names: tuple[str, ...]) -> Hashable:
        """Return the names of columns together with their Arrow types."""
        if names not in self._types:
            self._types[names] = tuple((name, self.types[name]) for name in names)
        return self._types[names]

    def column(self, name: str) -> Column | None:
        """Return a column; None if the column holds text.

        Raises:
            NotColumnar: if `datasets` decodes the values of the column, such as images. Also if a column that does not
                hold text contains null, or has an unsupported type. The supported types are bool, float32, float64 and
                all integers except uint64.
        """
        if name in self._others:
            raise NotColumnar
        if name not in self._columns:
            try:
                self._columns[name] = self._viewed(name)
            except NotColumnar:
                self._others.add(name)
                raise
        return self._columns[name]

    def _viewed(self, name: str) -> Column | None:
        if not _is_plain(self.dataset.features[name]):
            raise NotColumnar
        column = self.dataset.data.column(name)
        types: Any = imported("pyarrow").types
        if types.is_string(column.type) or types.is_large_string(column.type):
            return None
        viewed = Column(column)
        if viewed.type == np.uint64:
            raise NotColumnar  # not every value is an int64
        return viewed


def _is_temporal(kind: Any) -> bool:
    types: Any = imported("pyarrow").types
    return bool(types.is_temporal(kind))


def _format_of(dataset: Any) -> tuple[Any, Any, Any, Any]:
    """Return the format of a dataset: type, columns, options, and whether samples also hold all other columns.

    The function does not use the property `format` of the dataset, because that property makes copies. Making the
    copies takes as long as reading a small batch.
    """
    return dataset._format_type, dataset._format_columns, dataset._format_kwargs, dataset._output_all_columns


def is_table(dataset: Any) -> bool:
    """Return whether the class of a dataset is `datasets.Dataset`. False for a subclass."""
    known = getattr(imported("datasets.arrow_dataset"), "Dataset", None)
    return known is not None and type(dataset) is known


def _is_plain(feature: Any) -> bool:
    """Return whether the values in the table are the values of the samples. Images, for example, must be decoded."""
    if isinstance(feature, list):
        return len(feature) == 1 and _is_plain(feature[0])
    known = type(feature).__module__ == "datasets.features.features" and type(feature).__name__ in _PLAIN
    return known and (not hasattr(feature, "feature") or _is_plain(feature.feature))


class Cells:
    """The values of one column in one batch."""

    def __init__(self, column: Column, places: np.ndarray[Any, Any], style: str) -> None:
        """Create the cells without reading a value.

        Args:
            column: the column.
            places: the row of the column for each sample, shape (samples,).
            style: the kind of values that samples of the dataset hold: 'python', 'numpy' or 'torch'.
        """
        self.column, self.places, self.style = column, places, style

    def __len__(self) -> int:
        return len(self.places)

    @property
    def is_floating(self) -> bool:
        """Whether the values are floating point numbers. If False, they are integers or booleans."""
        return bool(self.column.type.kind == "f")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor that torch would make from the samples.

        Raises:
            NotColumnar: if the dtype is torch's default dtype, and the default is neither float32 nor float64.
        """
        if self.is_floating:
            default = torch.get_default_dtype() if self.style == "python" else torch.float32
            if default not in (torch.float32, torch.float64):
                raise NotColumnar
            return default
        return torch.bool if self.column.type.kind == "b" else torch.int64

    @cached_property
    def _found(self) -> tuple[np.ndarray[Any, Any], list[Span]]:
        if self.column.depth != 1:
            raise NotColumnar
        return self.column.spans(self.places)

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """The lengths of the lists, shape (samples,).

        Raises:
            NotColumnar: if the column does not have exactly one level of lists.
        """
        return self._found[0]

    def stacked(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the values as a tensor of shape (samples, ...).

        Args:
            dtype: the type of the tensor; None for the type in the property `dtype`.

        Raises:
            NotColumnar: if the values are lists of different shapes, or lists without values.
        """
        read = self.column.flat if not self.column.depth else self.column.block
        return read(self.places, self.dtype if dtype is None else dtype)

    def padded(self, width: int, value: int, side: str) -> torch.Tensor:
        """Return lists of integers as an int64 tensor of shape (samples, width).

        Args:
            width: the width, at least the length of the longest list.
            value: fills up shorter lists.
            side: side on which to pad: 'right' or 'left'.

        Raises:
            NotColumnar: if the values are not integers, if a list is longer than `width`, or if `side` is unknown.
        """
        if self.column.type.kind not in "iu" or side not in ("right", "left") or self.lengths.max() > width:
            raise NotColumnar
        tensor = torch.full((len(self), width), value, dtype=torch.int64)
        fill(tensor, self._found[1], side)
        return tensor


class TableRows(BatchRows):
    """The samples of a batch of a `datasets.Dataset`, or of a subset of one."""

    def __init__(
        self,
        rows: Any,
        indices: list[int],
        table: Table,
        places: np.ndarray[Any, Any],
        names: tuple[str, ...],
        cells: dict[str, Cells | None] | None = None,
    ) -> None:
        """Create a batch whose samples are not read yet.

        Args:
            rows: the dataset of the user.
            indices: the indices in `rows` of the samples of the batch.
            table: the columns.
            places: the row of the table for each sample, shape (samples,).
            names: the columns of the batch.
            cells: the columns that were read so far: name -> values, or None for a column of text. Columns that are
                read later are added to this dict. Default: a new dict.

        Raises:
            NotColumnar: if `names` is empty.
        """
        super().__init__(rows, indices)
        self.table, self.places = table, places
        self._cells: dict[str, Cells | None] = {} if cells is None else cells
        self.names = names
        if not self.names:
            raise NotColumnar

    @property
    def kind(self) -> Hashable:
        return self.table.style, self.table.types_of(self.names), torch.get_default_dtype()

    @property
    def style(self) -> str:
        """The kind of values that samples of the dataset hold: 'python', 'numpy' or 'torch'."""
        return self.table.style

    def plain(self) -> list[Any]:
        return [{key: row[key] for key in row if key in self.names} for row in super().plain()]

    def read(self, name: str) -> Cells | None:
        """Return the values of a column in this batch; None if the column holds text.

        Raises:
            NotColumnar: if the column is not supported, see `Table.column`.
        """
        if name not in self._cells:
            column = self.table.column(name)
            self._cells[name] = None if column is None else Cells(column, self.places, self.table.style)
        return self._cells[name]

    def numbers(self, name: str) -> Cells:
        """Return the values of a column of numbers.

        Raises:
            NotColumnar: if the column holds text, or is not supported, see `Table.column`.
        """
        cells = self.read(name)
        if cells is None:
            raise NotColumnar
        return cells

    def without(self, name: str) -> TableRows:
        """Return the same samples without the column `name`."""
        kept = tuple(key for key in self.names if key != name)
        return TableRows(self.rows, self.indices, self.table, self.places, kept, self._cells)

    def stacked(self) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = {}
        if "label" in self.names:
            cells = self.numbers("label")
            arrays = cells.column.depth and self.style != "python"
            if arrays and (self.style == "torch" or cells.column.type.kind == "b"):
                # The default collator turns a tensor of one label into a number, and refuses arrays of booleans.
                raise NotColumnar
            batch["labels"] = cells.stacked(torch.float32 if cells.is_floating else torch.int64)
        elif "label_ids" in self.names:
            cells = self.numbers("label_ids")
            natural = self.style == "torch"
            batch["labels"] = cells.stacked(None if natural else torch.float32 if cells.is_floating else torch.int64)
        for name in self.names:
            values = None if name in ("label", "label_ids") else self.read(name)
            if values is not None:
                batch[name] = values.stacked()
        return batch
