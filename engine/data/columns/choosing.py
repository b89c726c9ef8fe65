"""The choice between batches from columns and batches from samples.

If the class of the dataset or of the collator is not supported, batches are made from samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Subset, TensorDataset

from ..collators.default import Collator, ColumnFilter, DefaultDataCollator, default_data_collator
from ..collators.language_modeling import DataCollatorForLanguageModeling
from ..collators.padding import (
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from ..workers.startup import WorkerCollator
from .padding import is_usual
from .rows import BatchRows, NotColumnar
from .table import Table, TableRows, is_table
from .tensors import TensorRows

_PADDING = (
    DataCollatorWithPadding,
    DataCollatorForTokenClassification,
    DataCollatorForSeq2Seq,
    DataCollatorForLanguageModeling,
)


@contextmanager
def with_columns(loader: DataLoader[Any], indexed: bool) -> Iterator[None]:
    """Replace dataset and collator of a loader in a `with` block, so that torch's iterator makes batches from columns.

    If the function `columnar` returns None for the dataset and the collator, nothing is replaced. After the block, the
    attributes `dataset` and `collate_fn` of the loader have their old values.

    Args:
        loader: the loader.
        indexed: whether the loader reads samples by index. If False, the function replaces nothing.
    """
    dataset, collator = loader.dataset, loader.collate_fn
    found = columnar(dataset, collator) if indexed else None
    if found is None:
        yield
        return
    # A DataLoader refuses an assignment to `dataset`.
    try:
        object.__setattr__(loader, "dataset", found[0])
        loader.collate_fn = found[1]
        yield
    finally:
        object.__setattr__(loader, "dataset", dataset)
        loader.collate_fn = collator


def columnar(dataset: Any, collator: Collator) -> tuple[Any, Collator] | None:
    """Return a dataset and a collator that make the same batches as `dataset` and `collator`, but from columns.

    Return None if the class of the dataset or of the collator is not supported. Subclasses of supported classes are not
    supported. Return None too if the program replaced `__getitem__` or `__getitems__` of the dataset. A collator with a
    tokenizer is supported only if the function `is_usual` returns True for the tokenizer.

    Args:
        dataset: a map-style dataset.
        collator: turns a list of samples into a batch.
    """
    if isinstance(collator, WorkerCollator):
        found = columnar(dataset, collator.collator)
        return None if found is None else (found[0], WorkerCollator(found[1]))
    inner, accepted = collator, None
    if isinstance(collator, ColumnFilter):
        inner, accepted = collator.collator, collator.accepted
    base = _base(dataset)
    own = _own(inner)
    stacks = own is default_data_collator or type(own) is DefaultDataCollator
    if type(base) is TensorDataset and stacks:
        return ColumnDataset(dataset, base, accepted), ColumnCollator(collator, inner)
    if not is_table(base):
        return None
    if not stacks and not (type(own) in _PADDING and is_usual(own.tokenizer)):
        return None
    try:
        Table(base)
    except (NotColumnar, AttributeError):  # another version may have other attributes
        return None
    return ColumnDataset(dataset, base, accepted), ColumnCollator(collator, inner)


def _base(dataset: Any) -> Any:
    """Return the dataset without its wrappers of the class `Subset`.

    Return None if the program replaced `__getitem__` or `__getitems__` of the dataset or of a wrapper.
    """
    while type(dataset) is Subset and not _has_own_methods(dataset):
        dataset = dataset.dataset
    return None if _has_own_methods(dataset) else dataset


def _has_own_methods(dataset: Any) -> bool:
    own = getattr(dataset, "__dict__", {})
    return "__getitems__" in own or "__getitem__" in own


def _own(collator: Any) -> Any:
    """Convert transformers' `DataCollatorWithPadding` to the class of trainbus. Return other collators unchanged."""
    cls = type(collator)
    if cls.__module__ == "transformers.data.data_collator" and cls.__name__ == "DataCollatorWithPadding":
        return DataCollatorWithPadding(**vars(collator))
    return collator


class ColumnDataset:
    """A dataset with a method `__getitems__`, which torch's DataLoader calls to get a batch as one `BatchRows`."""

    def __init__(self, rows: Any, base: Any, accepted: Collection[str] | None) -> None:
        """Wrap a dataset, so that its batches are read from columns.

        Args:
            rows: the dataset. It may be a `Subset`.
            base: the dataset from which the `Subset` selects; `rows` itself if `rows` is not a `Subset`.
            accepted: columns to keep; None keeps all.
        """
        self.rows, self._base, self._accepted = rows, base, accepted
        self._table: Table | None = None
        self._names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_table": None}  # each worker makes its own views of the columns

    def __getitems__(self, indices: list[int]) -> Any:
        """Return a `BatchRows`, which reads no sample yet. If columns cannot make the batch, return the samples."""
        try:
            return self._unread(indices)
        except NotColumnar:
            return BatchRows(self.rows, indices).plain()

    def _unread(self, indices: list[int]) -> BatchRows:
        if not indices:
            raise NotColumnar
        places, dataset = indices, self.rows
        while dataset is not self._base:
            places, dataset = [dataset.indices[place] for place in places], dataset.dataset
        if type(self._base) is TensorDataset:
            return TensorRows(self.rows, indices, self._base.tensors, places)
        if self._table is None or not self._table.is_current:
            self._table = Table(self._base)
            kept = (name for name in self._table.names if self._accepted is None or name in self._accepted)
            self._names = tuple(kept)
        return TableRows(self.rows, indices, self._table, self._table.places(places), self._names)


@dataclass
class ColumnCollator:
    """A collator that makes a batch from columns.

    If a batch from columns could differ from a batch from samples, or takes longer, the collator uses the samples.
    """

    collator: Collator
    """Makes a batch from samples."""
    known: Collator
    """The collator that the user passed, without a `ColumnFilter` around it. It makes a batch from `BatchRows`. The
    `DataCollatorWithPadding` of transformers cannot do this, so trainbus calls its own class instead."""

    def __call__(self, features: Any) -> Any:
        if not isinstance(features, BatchRows):
            return self.collator(features)
        try:
            return _own(self.known)(features)
        except NotColumnar:
            return self.collator(BatchRows(features.rows, features.indices).plain())
