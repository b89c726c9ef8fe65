"""Compute the length of every sample of an Arrow table.

Arrow stores where each list begins and ends, so the values of the lists are not read. If a column stores lengths as
numbers, these numbers are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .rows import NotColumnar
from .table import Table, is_table


def column_lengths(dataset: Any, name: str, measured: bool) -> list[int] | None:
    """Compute the length of each sample from a column, without reading samples.

    Args:
        dataset: any dataset.
        name: the column of the lists to measure, or the column that stores the lengths.
        measured: whether the column stores the lengths.

    Returns:
        The lengths; None if columns cannot give them. The caller must then read the samples.
    """
    if not is_table(dataset):
        return None
    try:
        table = Table(dataset)
        column = table.column(name) if name in table.names else None
        if column is None or bool(column.depth) is measured:
            return None
        places = table.places(np.arange(len(dataset)))
        if not measured:
            lengths: list[int] = column.lengths(places).tolist()
            return lengths
        return column.flat(places, torch.int64).tolist() if column.type.kind in "iu" else None
    except (NotColumnar, AttributeError):
        return None
