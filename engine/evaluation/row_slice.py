"""Evaluation on a fixed random subset of a dataset, and the confidence interval of the mean loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from ...events.errors import ArgumentError

QUANTILE = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: 95 % of the values lie within this many standard deviations."""


def slice_of(dataset: Any, rows: int, seed: int) -> Any:
    """Return a random subset of a map-style dataset, in random order.

    The subset depends only on the seed, `rows` and the length of the dataset. So the subset is the same in every
    evaluation, on every rank and after a resume. The function `half_width` needs the random order.

    Args:
        dataset: a dataset with a length.
        rows: number of rows. If the dataset has fewer rows, the subset has all rows.
        seed: the seed of the draw. The draw does not use the generators of the run.

    Raises:
        ArgumentError: if the dataset has no length or no `__getitem__`.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ArgumentError(
            f"An evaluation on {rows} rows needs a dataset with a length, but {type(dataset).__name__} is a stream. "
            "Remove `eval_rows` or `Evaluate(rows=...)`, and set `limit_eval_batches` to a number of batches."
        )
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))[:rows].tolist()
    return dataset.select(order) if hasattr(dataset, "select") else Subset(dataset, order)


def half_width(row_losses: Any, batch_size: int) -> float | None:
    """Return the half width of the 95 % confidence interval of the mean loss; None with fewer than two batches.

    A model returns the mean loss of a batch, not the loss of each row. So the function uses the mean losses of batches.
    There are k batches. Batch j has n_j rows and the mean loss b_j. All batches together have n rows and the mean loss
    m = sum(n_j * b_j) / n. The half width is

        1.96 * sqrt(sum(n_j * (b_j - m)**2) / ((k - 1) * n))

    This is 1.96 times the standard error of m, estimated from the variance between the batches. With batches of equal
    size, it is 1.96 * std(b, ddof=1) / sqrt(k).

    Args:
        row_losses: for each row, the mean loss of its batch; shape (rows,), one batch after the other.
        batch_size: number of rows of every batch except the last.
    """
    sizes = np.diff([*range(0, len(row_losses), batch_size), len(row_losses)])
    if len(sizes) < 2:
        return None
    means = row_losses[::batch_size].astype(np.float64)
    mean = np.average(means, weights=sizes)
    variance = (sizes * (means - mean) ** 2).sum() / ((len(sizes) - 1) * sizes.sum())
    return QUANTILE * math.sqrt(variance)
