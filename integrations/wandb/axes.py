"""The x-axes of charts: choose the column that is the x-axis of another column."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from ...callbacks.base.tracker_rows import AXIS
from ...events.errors import ArgumentError, nearest

AXES = {"step": AXIS, "epoch": "train/epoch", "samples": "train/samples_seen", "tokens": "train/num_input_tokens_seen"}
"""Name of an axis -> its column."""


def check_axes(axis: str | Mapping[str, str]) -> None:
    """Check the names of axes in the field `axis` of `Wandb`.

    Raises:
        ArgumentError: for an unknown name.
    """
    for name in [axis] if isinstance(axis, str) else axis.values():
        if name not in AXES:
            raise ArgumentError(f"axis={name!r} is unknown{nearest(name, AXES)} Known: {', '.join(AXES)}.")


def axis_column(axis: str | Mapping[str, str], column: str) -> str:
    """Return the name of the column that is the x-axis for `column` in charts.

    If `column` is itself an axis, its x-axis is the step.

    Args:
        axis: the name of an axis for all columns, or a dict. Each key of the dict is a pattern for names of columns,
            and each value is the name of the axis for these columns. The first matching pattern counts. The axis of
            columns without a matching pattern is the step.
        column: the name of the column.
    """
    if column in AXES.values():
        return AXIS
    if isinstance(axis, str):
        return AXES[axis]
    found = next((name for pattern, name in axis.items() if fnmatch.fnmatchcase(column, pattern)), "step")
    return AXES[found]
