"""Gathering: results of an evaluation, collected batch by batch and over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..data.batches import join, map_tensors, rows_of, to_numpy
from ..distributed.ranks import Ranks


@dataclass
class Gathered:
    """One kind of result, collected batch by batch: losses, predictions, labels or inputs."""

    concat: bool
    """Whether batches are joined into one array; else they stay a list of batches."""
    parts: list[Any] = field(default_factory=list)
    """Batches that are still on their device."""
    arrays: list[Any] = field(default_factory=list)
    """Batches in host memory, as numpy arrays."""

    def add(self, part: Any) -> None:
        """Append the result of one batch; it stays on its device."""
        self.parts.append(part)

    def last(self, rows: int) -> Any:
        """Return the first `rows` rows of the last batch, on its device; None if there is no batch."""
        return first_rows(self.parts[-1], rows) if self.parts else None

    def drop(self) -> None:
        """Drop everything that is not in host memory."""
        self.parts = []

    def to_host(self) -> None:
        """Move all batches to host memory."""
        if self.parts:
            self.arrays.append(to_numpy(join(self.parts))) if self.concat else self.arrays.extend(
                map(to_numpy, self.parts)
            )
            self.parts = []

    def whole(self, rows: int, order: list[int] | None = None, padding_rows: int = 0) -> Any:
        """Return everything as numpy arrays in dataset order; None if there is nothing.

        Args:
            rows: number of rows of the dataset. Later rows only give all ranks equal batches; they are cut off.
            order: dataset index of each row, if the loader used another order than the dataset. A list of batches keeps
                the order of the loader.
            padding_rows: number of rows to cut off the end of a list of batches.
        """
        self.to_host()
        if not self.arrays:
            return None
        return first_rows(join(self.arrays), rows, order) if self.concat else _cut_last(self.arrays, padding_rows)


def gather_rows(gathered: tuple[tuple[Gathered, Any], ...], ranks: Ranks, rows: int, *, as_objects: bool) -> int:
    """Gather the results of one batch from all ranks, in order of rank, and add them.

    Args:
        gathered: pairs of collection and this rank's part of shape (rows, ...). None as part adds nothing.
        ranks: the ranks.
        rows: number of rows on this rank.
        as_objects: gather pickled objects. Parts may then be any objects, with another structure on each rank.

    Returns:
        The number of rows over all ranks.
    """
    parts = [part for _, part in gathered]
    if not ranks.single_process and not as_objects:
        rows = int(ranks.sum(torch.tensor(rows, device=_device_of(parts))))
        parts = [map_tensors(ranks.gather_padded, part) for part in parts]
    elif not ranks.single_process:
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


def first_rows(arrays: Any, rows: int | None, order: list[int] | None = None) -> Any:
    """Return nested arrays or tensors of shape (n, ...) cut to their first rows.

    Args:
        arrays: a tensor, a numpy array, or mappings and sequences of them; None stays None.
        rows: number of rows to keep; None keeps all.
        order: dataset index of each row; numpy arrays are sorted by it.
    """
    if arrays is None or isinstance(arrays, torch.Tensor):
        return arrays if arrays is None else arrays[:rows]
    if isinstance(arrays, np.ndarray):
        kept = arrays[:rows]
        return kept if order is None else kept[np.argsort(order[: len(kept)])]
    if isinstance(arrays, Mapping):
        return type(arrays)({key: first_rows(value, rows, order) for key, value in arrays.items()})  # type: ignore[call-arg]
    return type(arrays)(first_rows(value, rows, order) for value in arrays)


def _device_of(parts: list[Any]) -> torch.device:
    """Return the device of the first tensor; the CPU if there is none."""
    found: list[torch.device] = []
    map_tensors(lambda tensor: found.append(tensor.device), parts)
    return found[0] if found else torch.device("cpu")


def _cut_last(batches: list[Any], padding_rows: int) -> list[Any]:
    """Return a list of batches, the last one without its padding rows."""
    if padding_rows <= 0:
        return batches
    return [*batches[:-1], first_rows(batches[-1], (rows_of(batches[-1]) or 0) - padding_rows)]
