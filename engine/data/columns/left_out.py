"""Find the columns that the default collator leaves out of a batch, because their values are texts or None."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ....events.imported import imported

_SCANNED = 100_000
"""The number of rows of a table in which an error looks for the first text that is not a number."""

_SHOWN = 40
"""Characters of a text that an error shows."""

REMEDY = (
    "The default collator makes no tensor of texts and None. Give each row a number: number classes with "
    "`dataset.class_encode_column`, tokenize sentences, and replace other texts and None with `dataset.map`."
)
"""How to get values that the default collator can stack."""


def why_left_out(dataset: Any, row: int | None, names: Collection[str]) -> list[str]:
    """Return one text for each column that is left out of a batch because of its values, such as `'age' is None`.

    The function reads the sample `row`, so call it only after an error. For a table, the text names the first value
    that is not a number.

    Args:
        dataset: a dataset of any kind.
        row: the index of the first sample of the batch. This sample decides which columns the batch has. If `row` is
            None, the function reads no sample, and uses the types of the columns.
        names: the columns to look for. A column that the sample lacks is skipped.
    """
    if row is None or not hasattr(dataset, "__getitem__"):
        return [f"{name!r} is {kind}" for name, kind in types_left_out(dataset, names).items()]
    sample = columns_of(dataset[row])
    return [_reason(dataset, row, name, sample[name]) for name in names if name in sample and is_left_out(sample[name])]


def is_left_out(value: Any) -> bool:
    """Return whether the default collator leaves out a column whose first value in the batch is `value`."""
    return value is None or isinstance(value, str)


def columns_of(sample: Any) -> Mapping[str, Any]:
    """Return the columns of a sample, as the default collator reads them. Empty for a tuple or a tensor."""
    if isinstance(sample, Mapping):
        return sample
    named: Mapping[str, Any] = sample._asdict() if hasattr(sample, "_asdict") else {}
    return named or dict(getattr(sample, "__dict__", {}))


def first_number(name: str, samples: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the first sample whose value for the column `name` is a number; None if there is none."""
    numbers = (int, float, np.number, torch.Tensor)
    return next((row for row, sample in enumerate(samples) if isinstance(sample.get(name), numbers)), None)


def mixed(name: str, row: int, text: str, other: int) -> str:
    """Return the error text for values that mix texts and numbers.

    Args:
        name: names the values, such as `column 'x'`.
        row: a sample of the batch with a text.
        text: the text in this sample.
        other: a sample of the batch without a text.
    """
    return (
        f"The {name} is the text {_shown(text)} in sample {row} of a batch, and no text in sample {other}. Replace "
        "such texts by numbers with `dataset.map`, remove such rows with `dataset.filter`, or pass a `data_collator`."
    )


def types_left_out(dataset: Any, names: Collection[str]) -> dict[str, str]:
    """Return the columns that the default collator leaves out of each batch: name -> `text`, or `None in each row`.

    The function reads the types of the columns, and no sample. Only datasets of the library `datasets` without a
    transform have such types. For any other dataset, the result is empty.

    Args:
        dataset: a dataset of any kind.
        names: the columns to look for.
    """
    features = getattr(dataset, "features", None)
    if getattr(dataset, "_format_type", None) == "custom" or not isinstance(features, Mapping):
        return {}
    types = {name: getattr(features.get(name), "dtype", None) for name in names}
    return {name: _LEFT_OUT[kind] for name, kind in types.items() if kind in _LEFT_OUT}


_LEFT_OUT = {"string": "text", "large_string": "text", "null": "None in each row"}
"""Type of a column that the default collator leaves out -> what the rows hold."""


def _reason(dataset: Any, row: int, name: str, value: Any) -> str:
    if value is None:
        return f"{name!r} is None in row {row}"
    if _is_number(value):
        row, value = _first_other(dataset, name) or (row, value)
    return f"{name!r} is text, such as {_shown(value)} in row {row}"


def _shown(text: str) -> str:
    return repr(str(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _first_other(dataset: Any, name: str) -> tuple[int, str] | None:
    """Return the first text in the column `name` that `float` refuses, as a pair: row number, text.

    Return None if no such text is found, or if the dataset is not of the class `datasets.Dataset`.
    """
    table = getattr(imported("datasets.arrow_dataset"), "Dataset", None)
    if table is None or not isinstance(dataset, table):
        return None
    row = 0
    for part in dataset.with_format(None).select_columns([name]).iter(batch_size=1000):
        for value in part[name]:
            if isinstance(value, str) and not _is_number(value):
                return row, value
            row += 1
        if row >= _SCANNED:
            break
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
