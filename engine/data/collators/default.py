"""The default collator: stacks samples into a batch, and filters their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ....events.errors import ArgumentError, DataError

Collator = Callable[[list[Any]], Any]


def default_data_collator(features: list[Any], return_tensors: str = "pt") -> Any:
    """Stack samples into a batch.

    Dicts become a dict of tensors. `label` (a number) and `label_ids` (numbers) become `labels`: integers as int64,
    other numbers as float32. Strings and None are left out. Tuples become a tuple of tensors.

    Args:
        features: the samples: dicts, named tuples, objects with attributes, tuples, tensors or arrays.
        return_tensors: must be 'pt', for torch tensors.

    Returns:
        A dict or tuple of tensors of shape (rows, ...), or one such tensor.

    Raises:
        DataError: if the values of a key cannot be stacked. It names the key and the remedy.
        ArgumentError: if `return_tensors` is not 'pt'.
    """
    only_torch(return_tensors)
    first = features[0]
    if isinstance(first, (tuple, list, torch.Tensor, np.ndarray)) and not hasattr(first, "_asdict"):
        return tuple(default_collate(features)) if isinstance(first, (tuple, list)) else default_collate(features)
    if not isinstance(first, Mapping):
        features = [feature._asdict() if hasattr(feature, "_asdict") else vars(feature) for feature in features]
        first = features[0]
    batch: dict[str, Any] = {}
    if first.get("label") is not None:
        label = first["label"].item() if isinstance(first["label"], torch.Tensor) else first["label"]
        batch["labels"] = torch.tensor([feature["label"] for feature in features], dtype=_dtype(label))
    elif first.get("label_ids") is not None:
        if isinstance(first["label_ids"], torch.Tensor):
            batch["labels"] = torch.stack([feature["label_ids"] for feature in features])
        else:
            rows = [feature["label_ids"] for feature in features]
            batch["labels"] = torch.tensor(rows, dtype=_dtype(rows[0][0]))
    for key, value in first.items():
        if key not in ("label", "label_ids") and value is not None and not isinstance(value, str):
            batch[key] = _stack(key, [feature[key] for feature in features])
    return batch


@dataclass
class DefaultDataCollator:
    """`default_data_collator` as an object, for code that passes collators with their settings."""

    return_tensors: str = "pt"
    """Must be 'pt', for torch tensors."""

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """Stack samples into a batch. `return_tensors` overrides the attribute."""
        return default_data_collator(features, return_tensors or self.return_tensors)


def only_torch(return_tensors: str) -> None:
    """Raise ArgumentError unless `return_tensors` is 'pt'."""
    if return_tensors != "pt":
        raise ArgumentError(f"`return_tensors` is {return_tensors!r}, which is not supported. Set it to 'pt'.")


def _dtype(label: Any) -> torch.dtype:
    """Return the dtype of labels: int64 for integers, float32 for other numbers."""
    return torch.int64 if isinstance(label, (int, np.integer)) else torch.float32


def _stack(key: str, values: list[Any]) -> torch.Tensor:
    """Return the values of one key as a tensor of shape (rows, ...).

    Raises:
        DataError: if the values cannot be stacked.
    """
    try:
        if isinstance(values[0], torch.Tensor):
            return torch.stack(values)
        if isinstance(values[0], np.ndarray):
            return torch.from_numpy(np.stack(values))
        return torch.tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        sizes = sorted({len(value) for value in values if hasattr(value, "__len__")})
        remedy = (
            f"Its values have lengths {sizes[:5]}: pass a `processing_class` that pads, or a `data_collator`."
            if len(sizes) > 1
            else "Pass a `data_collator` that turns it into a tensor, or remove the column."
        )
        raise DataError(f"The column {key!r} cannot be stacked into a batch ({error}). {remedy}") from error


@dataclass
class ColumnFilter:
    """A collator that first removes from each sample the columns that the model's `forward` does not accept."""

    collator: Collator
    """Makes the batch."""
    accepted: frozenset[str]
    """Columns to keep."""

    def __call__(self, features: list[Any]) -> Any:
        # The default collator takes the columns of the first sample, so checking this one suffices.
        checked = features[:1] if self.collator is default_data_collator else features
        if isinstance(features[0], dict) and not all(map(self.accepted.issuperset, checked)):
            features = [{key: row[key] for key in row if key in self.accepted} for row in features]
        return self.collator(features)
