"""The single samples of a dataset that contains batches, such as the result of `datasets.Dataset.batch(n)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from ...events.errors import DataError
from .build import is_iterable


def unbatched(dataset: Any) -> Dataset[Any]:
    """Return a dataset of the single samples of a dataset of batches.

    Pass the result to the Trainer, and set the batch size in the arguments. The Trainer then shuffles and counts single
    samples:

        trainer = Trainer(model, args, train_dataset=unbatched(dataset.batch(16)))

    To return one sample, a map-style dataset reads the whole batch of the sample. The last batch that was read stays in
    memory.

    Args:
        dataset: a dataset of batches. A batch is a dict, tuple or list of columns with one entry per sample. In a
            map-style dataset, all batches have as many samples as the first batch, except the last, which may have
            fewer. A stream may have batches of any size.

    Raises:
        DataError: if an element of the dataset is not such a batch. The error is raised when this element is read. This
            function reads the first and the last batch of a map-style dataset.
    """
    return _UnbatchedStream(dataset) if is_iterable(dataset) else _UnbatchedRows(dataset)


class _UnbatchedRows(Dataset[Any]):
    """A map-style dataset of single samples, from a dataset whose elements are batches."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self._read: tuple[int, Any] = (-1, None)
        last = len(batches) - 1
        self._size = _rows_of(batches[0], 0) if len(batches) else 0
        rows = _rows_of(batches[last], last) if len(batches) else 0
        if rows > self._size or (last > 0 and not self._size):
            raise _other_size(last, rows, self._size)
        self._length = max(0, last) * self._size + rows

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(f"There is no sample {index}: the dataset has {self._length}.")
        number, row = divmod(index, self._size)
        if self._read[0] != number:
            batch = self.batches[number]
            rows, expected = _rows_of(batch, number), min(self._size, self._length - number * self._size)
            if rows != expected:
                raise _other_size(number, rows, self._size)
            self._read = (number, batch)
        return _row(self._read[1], row)


class _UnbatchedStream(IterableDataset[Any]):
    """The single samples of a stream with batches as elements."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            for row in range(_rows_of(batch, number)):
                yield _row(batch, row)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the stream, if the stream has `set_epoch`. Epochs count from 0."""
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)


def _other_size(number: int, rows: int, first: int) -> DataError:
    return DataError(
        f"Batch {number} of the dataset has {rows} rows, but the first has {first}. Only the last may have fewer. "
        "Batch the dataset with one size, or pass it without `batch`."
    )


def _row(batch: Any, row: int) -> Any:
    if isinstance(batch, Mapping):
        return {name: column[row] for name, column in batch.items()}
    return tuple(column[row] for column in batch)


def _rows_of(batch: Any, number: int) -> int:
    """Return the number of rows of a batch. Errors name the batch by its index `number` in the dataset.

    Raises:
        DataError: if `batch` is not a dict, list or tuple of columns, or if its columns have different lengths.
    """
    columns = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    if not columns or not all(hasattr(column, "__len__") and not isinstance(column, str) for column in columns):
        raise DataError(
            f"Sample {number} of the dataset is not a batch, but of type {type(batch).__name__}. Pass the dataset "
            "itself, without `unbatched`."
        )
    rows = sorted({_length(column) for column in columns})
    if len(rows) > 1:
        raise DataError(f"The columns of batch {number} of the dataset have different numbers of rows: {rows}.")
    return rows[0]


def _length(column: Any) -> int:
    shape = getattr(column, "shape", None)
    return len(column) if shape is None or len(shape) else 0
