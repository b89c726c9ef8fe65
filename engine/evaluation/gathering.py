"""Collect the results of an evaluation, batch by batch and from all ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from ..data.batches import join, map_tensors, map_together, rows_of, to_numpy
from ..distributed.ranks import Ranks

logger = logging.getLogger(__name__)


@dataclass
class Gathered:
    """One kind of result, collected batch by batch: losses, predictions, labels or inputs."""

    concat: bool
    """Whether `whole` joins the batches into one array. If False, `whole` returns a list of batches."""
    parts: list[Any] = field(default_factory=list)
    """Results of batches that are still on their device."""
    arrays: list[Any] = field(default_factory=list)
    """Results in host memory, as numpy arrays. They come before `parts`."""

    def add(self, part: Any) -> None:
        """Append the result of one batch. The result stays on its device."""
        self.parts.append(part)

    def last(self, rows: int, of: int | None = None) -> Any:
        """Return the first `rows` rows of the last batch, on its device; None if the attribute `parts` is empty.

        Args:
            rows: number of rows to return.
            of: number of all rows of the last batch. Set `of` if an array has several entries per row, such as several
                generated sequences. For example, an array with 12 entries and `of=4` has 3 entries per row. None: each
                array has one entry per row.
        """
        return first_rows(self.parts[-1], rows, of=of) if self.parts else None

    def drop(self) -> None:
        """Delete the results that `to_host` has not moved to host memory yet."""
        self.parts = []

    def to_host(self) -> None:
        """Move the results of all batches to host memory, as numpy arrays."""
        if self.parts:
            self.arrays.append(to_numpy(join(self.parts))) if self.concat else self.arrays.extend(
                map(to_numpy, self.parts)
            )
            self.parts = []

    def whole(
        self,
        rows: int,
        order: list[int] | None = None,
        padding_rows: int = 0,
        of: int | None = None,
        of_last: int | None = None,
    ) -> Any:
        """Return all gathered values as numpy arrays; None if nothing was gathered.

        If the attribute `concat` is True, the batches are joined, and the rows are in the order of the dataset.
        Otherwise the result is a list of batches in the order of the loader.

        Args:
            rows: for joined batches, the number of rows to keep. The method removes the padding after these rows.
            order: dataset index of each row, if the order of the loader differs from the order of the dataset; None if
                the orders are equal.
            padding_rows: for a list of batches, the number of padding rows to remove from the end of the last batch.
            of: for joined batches, the number of rows of all batches, padding included. Set `of` if an array has
                several entries per row, such as several generated sequences. For example, an array with 12 entries and
                `of=4` has 3 entries per row. None: each array has one entry per row.
            of_last: for a list of batches, the number of rows of the last batch, padding included. None: the length of
                the first array of the last batch.
        """
        self.to_host()
        if not self.arrays:
            return None
        if self.concat:
            return first_rows(join(self.arrays), rows, order, of)
        return _cut_last(self.arrays, padding_rows, of_last)


@dataclass
class BatchLosses(Gathered):
    """The losses of batches. `to_host` repeats each scalar loss for each row of its batch."""

    scalars: list[Any] = field(default_factory=list)
    """Mean losses of batches: numbers of the type `dtype`, or tensors that are still on their device."""
    rows: list[int] = field(default_factory=list)
    """The number of rows of each batch in `scalars`."""
    dtype: torch.dtype | None = None
    """The type to which the types of all scalar losses are promoted; None before the first scalar loss."""

    def add_scalar(self, loss: torch.Tensor, rows: int) -> None:
        """Append the mean loss of a batch of `rows` rows. `to_host` later repeats this loss for each row."""
        # The model may write the next loss into the same memory. A number is the fastest copy on a CPU. On another
        # device, it would wait for the device.
        in_memory = type(loss) is torch.Tensor and loss.is_cpu
        self.scalars.append(loss.item() if in_memory else loss.clone())
        if loss.dtype != self.dtype:
            self.dtype = loss.dtype if self.dtype is None else torch.promote_types(self.dtype, loss.dtype)
        self.rows.append(rows)

    def to_host(self) -> None:
        """Move all losses to host memory. Repeat each scalar loss for each row of its batch."""
        if self.scalars:
            if any(isinstance(loss, torch.Tensor) for loss in self.scalars):
                losses = torch.stack([torch.as_tensor(loss, dtype=self.dtype) for loss in self.scalars])
            else:
                losses = torch.tensor(self.scalars, dtype=self.dtype)
            self.arrays.append(np.repeat(to_numpy(losses), self.rows))
            self.scalars, self.rows = [], []
        super().to_host()


def copied(data: Any) -> Any:
    """Return `data` with a copy of each tensor. `data` is a tensor, or nested mappings and sequences."""
    return data.clone() if isinstance(data, torch.Tensor) else map_tensors(torch.Tensor.clone, data)


def gather_rows(gathered: tuple[tuple[Gathered, Any], ...], ranks: Ranks, rows: int, *, as_objects: bool) -> int:
    """Gather the results of one batch from all ranks, in order of rank, and add them to the collections.

    Args:
        gathered: pairs of a collection and this rank's part, of shape (rows, ...). If a part is None, its collection
            stays unchanged.
        ranks: the ranks.
        rows: number of rows on this rank.
        as_objects: whether to gather pickled objects. False gathers tensors. The parts of all ranks must then have the
            same structure.

    Returns:
        The number of rows over all ranks.
    """
    parts = [part for _, part in gathered]
    if not as_objects:
        rows = int(ranks.sum(torch.tensor(rows, device=_device_of(parts))))
        parts = [map_tensors(ranks.gather_padded, part) for part in parts]
    else:
        everyone = ranks.gather_objects(([map_tensors(torch.Tensor.cpu, part) for part in parts], rows))
        rows = sum(rows_of_rank for _, rows_of_rank in everyone)
        parts = [
            None if part is None else join([parts_of_rank[index] for parts_of_rank, _ in everyone])
            for index, part in enumerate(parts)
        ]
    for (collection, _), part in zip(gathered, parts):
        if part is not None:
            collection.add(part)
    return rows


def gather_batches(gathered: tuple[Gathered, ...], batches: Sequence[tuple[int, Sequence[Any]]], ranks: Ranks) -> int:
    """Gather the results of several batches from all ranks at once, and add them to the collections.

    The rows of all ranks for the first batch come first, then the rows of all ranks for the second batch, and so on.
    One call of `gather_rows` for each batch gives the same result, but needs more collectives.

    Args:
        gathered: the collections.
        batches: for each batch, the number of rows on this rank and a tuple with one part for each collection. All
            ranks pass the same number of batches.
        ranks: the ranks.

    Returns:
        The number of rows over all ranks and batches.
    """
    if any(len({part is None for part in parts}) > 1 for parts in zip(*(parts for _, parts in batches))):
        # Some batches lack a part, such as labels.
        return sum(gather_rows(tuple(zip(gathered, parts)), ranks, rows, as_objects=False) for rows, parts in batches)
    for index, collection in enumerate(gathered):
        parts = [parts[index] for _, parts in batches]
        if parts[0] is not None:
            collection.add(map_together(partial(_gathered_in_turn, ranks=ranks), parts))
    return sum(ranks.sum_numbers([rows for rows, _ in batches]))


def _gathered_in_turn(parts: list[Any], ranks: Ranks) -> Any:
    """Gather one tensor per batch from all ranks and join the tensors: the first batch of each rank, then the second.

    Args:
        parts: one tensor for each batch of this rank.
        ranks: the ranks.
    """
    if not isinstance(parts[0], torch.Tensor):
        return join(parts)  # refuses values that cannot be gathered
    tensors = [part.reshape(1) if part.dim() == 0 else part for part in parts]
    lengths = ranks.gather_numbers(*map(len, tensors))
    whole = ranks.gather_padded(join(tensors))
    by_rank = iter(torch.split(whole, [length for of_rank in lengths for length in of_rank]))
    pieces = [[next(by_rank) for _ in of_rank] for of_rank in lengths]
    return torch.cat([piece for of_batch in zip(*pieces) for piece in of_batch])


def first_rows(arrays: Any, rows: int | None, order: list[int] | None = None, of: int | None = None) -> Any:
    """Return only the first rows of nested arrays or tensors.

    An array may have several entries per row along its first dimension, such as several generated sequences.

    Args:
        arrays: a tensor, a numpy array, or mappings and sequences of them; None stays None.
        rows: number of rows to return; None returns all.
        order: dataset index of each row. The function sorts the returned rows of numpy arrays by these indices, but not
            the rows of tensors. None keeps the order.
        of: number of rows in `arrays`. For example, an array with 12 entries and `of=4` has 3 entries per row. None:
            each row has one entry. If the number of entries is not a multiple of `of`, the function returns the array
            unchanged. The function also logs a warning, except if `rows` equals `of` and `order` is None.
    """
    if arrays is None:
        return None
    return map_together(lambda values: _first_rows_of(values[0], rows, order, of), [arrays])


def _first_rows_of(array: Any, rows: int | None, order: list[int] | None, of: int | None) -> Any:
    """Return only the first rows of one array or tensor. `first_rows` describes the parameters."""
    if of is not None and rows == of and order is None:
        return array
    length = len(array) if array.ndim else 0
    each, rest = (1, 0) if of is None else divmod(length, of) if of else (0, 0)
    if rest or not each:
        logger.warning(
            "Predictions or labels have %d entries along their first dimension, from %d samples. Which entries belong "
            "to which sample is unknown, so they are kept as the model returned them, in the order of the batches. "
            "Return tensors whose first dimension is the sample, or several entries per sample.",
            length,
            of,
        )
        return array
    kept = array if rows is None else array[: rows * each]
    if order is None or isinstance(kept, torch.Tensor):
        return kept
    count = len(kept) // each
    return kept.reshape(count, each, *kept.shape[1:])[np.argsort(order[:count])].reshape(kept.shape)


def _device_of(parts: list[Any]) -> torch.device:
    """Return the device of the first tensor in `parts`; the CPU if there is no tensor."""
    found: list[torch.device] = []
    map_tensors(lambda tensor: found.append(tensor.device), parts)
    return found[0] if found else torch.device("cpu")


def _cut_last(batches: list[Any], padding_rows: int, of_last: int | None) -> list[Any]:
    """Return a list of batches without the padding rows of the last batch.

    Args:
        batches: the batches.
        padding_rows: number of rows to remove. If it is 0 or less, the batches stay unchanged.
        of_last: number of rows of the last batch, padding included. None: the length of the first array in the batch.
    """
    if padding_rows <= 0:
        return batches
    rows = (rows_of(batches[-1]) or 0) if of_last is None else of_last
    return [*batches[:-1], first_rows(batches[-1], rows - padding_rows, of=of_last)]
