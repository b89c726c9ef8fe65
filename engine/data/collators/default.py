"""The default collator, which stacks samples into a batch, and a collator that removes columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ....events.errors import ArgumentError, DataError
from ....events.keywords import CheckedKeywords
from ...distributed.memory_errors import lacks_memory
from ..batches import map_tensors
from ..columns.left_out import first_number, mixed
from ..columns.rows import BatchRows

Collator = Callable[[list[Any]], Any]


def default_data_collator(features: list[Any], return_tensors: str = "pt") -> Any:
    """Stack samples into a batch.

    Dicts become a dict of tensors:

    - The column `label` (a number) or `label_ids` (numbers) becomes `labels`. The dtype of `labels` is int64 if all
      labels of the batch are integers or booleans, else float32. Tensors in `label_ids` keep their dtype.
    - If another column mixes integers and floats, its tensor has a float dtype.
    - Columns of strings are left out, also if some values are None. Columns with only None are left out too. A column
      of strings and numbers is an error.

    Tuples and lists become a tuple of tensors. Lists of numbers at one position of the tuples become one tensor: the
    samples `([1, 2], 0)` and `([3, 4], 1)` become tensors of shape (2, 2) and (2,). torch's `default_collate` stacks
    the other values of tuples. It also stacks samples that are tensors or arrays.

    Args:
        features: the samples: dicts, named tuples, objects with attributes, tuples, tensors or arrays.
        return_tensors: 'pt' for torch tensors, 'np' for NumPy arrays.

    Returns:
        A dict or tuple of tensors of shape (rows, ...), or one such tensor.

    Raises:
        DataError: if the samples are of a type such as text or a number, if a sample lacks a column, if tuples differ
            in length, or if the values of a column or tuple position cannot be stacked. The error says how to fix it.
        ArgumentError: if `return_tensors` is neither 'pt' nor 'np'.
    """
    return as_type(_stacked_batch(features), return_tensors)


def _stacked_batch(features: list[Any]) -> Any:
    if isinstance(features, BatchRows):
        return features.proved("stack", features.stacked, _stacked_batch)
    first = features[0]
    if isinstance(first, (tuple, list, torch.Tensor, np.ndarray)) and not hasattr(first, "_asdict"):
        return _tuple_batch(features) if isinstance(first, (tuple, list)) else _collated("samples", features)
    if not isinstance(first, (dict, Mapping)):  # `dict` first: it is the most common type and quick to test
        if problem := sample_problem(first):
            raise DataError(problem)
        try:
            features = [feature._asdict() if hasattr(feature, "_asdict") else vars(feature) for feature in features]
        except TypeError as error:
            raise _other_type(features) from error
    try:
        return _dict_batch(features)
    except (KeyError, TypeError) as error:
        if problem := _lacking_column(features):
            raise DataError(problem) from error
        raise


def _dict_batch(features: list[Any]) -> dict[str, Any]:
    """Stack samples that are dicts."""
    first = features[0]
    batch: dict[str, Any] = {}
    if first.get("label") is not None:
        labels = [_number(feature["label"]) for feature in features]
        batch["labels"] = _labels(labels)
    elif first.get("label_ids") is not None:
        batch["labels"] = _label_ids([feature["label_ids"] for feature in features])
    for key, value in first.items():
        if value is None and (row := _first_value(key, features)):
            of_labels = key in ("label", "label_ids")
            if ("labels" in batch and of_labels) or (not of_labels and isinstance(features[row][key], str)):
                continue  # labels come from another column, or a column of strings is left out
            raise DataError(_missing(f"column {key!r}", 0, f"sample {row} of the batch has one"))
        if isinstance(value, str) and (row := first_number(key, features)):
            raise DataError(mixed(f"column {key!r}", 0, value, row))
        if key not in ("label", "label_ids") and value is not None and not isinstance(value, str):
            batch[key] = _stack(f"column {key!r}", [feature[key] for feature in features])
    return batch


def _tuple_batch(features: list[Any]) -> tuple[Any, ...]:
    """Stack samples that are tuples, position by position.

    Raises:
        DataError: if the samples differ in length, or if the values at one position cannot be stacked.
    """
    try:
        lengths = sorted({len(feature) for feature in features})
    except TypeError as error:
        raise _other_type(features) from error
    if len(lengths) > 1:
        raise DataError(
            f"The samples are tuples or lists of lengths {lengths[:5]}. Give each sample the same number of values, or "
            "pass a `data_collator`."
        )
    return tuple(_position(f"position {place} of the samples", values) for place, values in enumerate(zip(*features)))


def _position(name: str, values: Any) -> Any:
    """Stack the values at one position of samples that are tuples. `name` names the position in errors.

    Lists of numbers become one tensor: `[1, 2]` and `[3, 4]` become a tensor of shape (2, 2). `default_collate` of
    torch would make two tensors of them. Dicts are stacked key by key, and all other values by `default_collate`.
    """
    first = values[0]
    if isinstance(first, Mapping):
        if problem := _lacking_column(values, f" at {name}"):
            raise DataError(problem)
        return {key: _position(f"{key!r} in {name}", [value[key] for value in values]) for key in first}
    return _stack(name, values) if _is_list_of_numbers(first) else _collated(name, values)


def _collated(name: str, values: Any) -> Any:
    """Stack values with `default_collate` of torch. `name` names the values in errors.

    Raises:
        DataError: if the values cannot be stacked.
    """
    try:
        return default_collate(values)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        if lacks_memory(error):
            raise
        raise _unstackable(name, values, error) from error


def _other_type(features: Sequence[Any]) -> DataError:
    """Return the error for a batch in which a sample has another type than the first."""
    first = type(features[0])
    row = next((row for row, feature in enumerate(features) if type(feature) is not first), 0)
    return DataError(
        f"Sample {row} of a batch is of type {type(features[row]).__name__}, but the first is of type "
        f"{first.__name__}. Give all samples the same type, or pass a `data_collator`."
    )


def _lacking_column(features: Sequence[Any], place: str = "") -> str:
    """Return an error text if a sample is not a dict or lacks a column of the first sample; else an empty text.

    Args:
        features: the samples. For samples that are tuples, `features` has the values at one position of the tuples.
            `features[0]` is a dict.
        place: the position as text, such as ` at position 1 of the samples`; empty for whole samples.
    """
    remedy = "Give all samples the same columns, or pass a `data_collator`."
    for row, feature in enumerate(features):
        if not isinstance(feature, Mapping):
            kind = type(feature).__name__
            return f"Sample {row} of a batch{place} is of type {kind}, but the first is a dict. {remedy}"
        for key in features[0]:
            if key not in feature:
                return f"Sample {row} of a batch{place} has no column {key!r}, but the first sample has one. {remedy}"
    return ""


def _is_list_of_numbers(value: Any) -> bool:
    """Return whether a value is a list or tuple of numbers, nested to any depth. False for named tuples."""
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields"):
        return False
    return all(isinstance(part, (bool, int, float)) or _is_list_of_numbers(part) for part in value)


def sample_problem(sample: Any) -> str:
    """Return why `default_data_collator` cannot stack a sample, and how to fix it; an empty text if it can."""
    known = isinstance(sample, (Mapping, tuple, list, torch.Tensor, np.ndarray))
    if known or hasattr(sample, "_asdict") or (hasattr(sample, "__dict__") and not callable(sample)):
        return ""
    shown = repr(sample)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    tokenize = "Tokenize texts first: `[tokenizer(text) for text in texts]`. " if isinstance(sample, str) else ""
    return (
        f"The samples are of type {type(sample).__name__}. The first is {shown}. {tokenize}Pass dicts of numbers or "
        "tensors, such as {'input_ids': [...], 'labels': 0}, or a `data_collator` that makes batches of these samples."
    )


_SHOWN = 200
"""Characters of a sample that an error shows."""


@dataclass
class DefaultDataCollator(CheckedKeywords):
    """`default_data_collator` as a class, for code that builds a collator and calls it later."""

    return_tensors: str = "pt"
    """Type of the result: 'pt' for torch tensors, 'np' for NumPy arrays."""

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """Stack samples into a batch. None for `return_tensors` uses the attribute of the same name."""
        return default_data_collator(features, return_tensors or self.return_tensors)


def as_type(batch: Any, return_tensors: str) -> Any:
    """Convert the tensors of a batch to NumPy arrays if `return_tensors` is 'np'. For 'pt', return the batch unchanged.

    Raises:
        ArgumentError: if `return_tensors` is neither 'pt' nor 'np'.
    """
    if return_tensors == "pt":
        return batch
    check_type(return_tensors)
    return map_tensors(lambda tensor: tensor.numpy(), batch)


def check_type(return_tensors: str) -> None:
    """Raise an `ArgumentError` if `return_tensors` is neither 'pt' nor 'np'."""
    if return_tensors not in ("pt", "np"):
        raise ArgumentError(
            f"`return_tensors` is {return_tensors!r}, which is not supported. Set it to 'pt' for torch tensors or to "
            "'np' for NumPy arrays."
        )


def makes_new_tensors(collator: Any) -> bool:
    """Return whether a collator certainly makes each batch in new memory, which no later batch overwrites.

    The result is True for a collator of trainbus, and False for any other collator.

    Args:
        collator: the collator of a loader. If it is a wrapper of trainbus, the function checks the wrapped collator.
    """
    while _is_own(collator) and hasattr(collator, "collator"):
        collator = collator.collator
    return _is_own(collator)


def _is_own(collator: Any) -> bool:
    """Return whether a function, or the class of an object, is defined in the package `trainbus.engine.data`."""
    owner = collator if hasattr(collator, "__qualname__") else type(collator)
    return str(owner.__module__).startswith(__name__.rpartition(".collators.")[0])


only_torch = check_type
"""The former name of `check_type`."""


def _labels(labels: list[Any]) -> torch.Tensor:
    """Stack the values of the column `label` into one tensor. `labels` has one value per sample.

    Raises:
        DataError: if a label is not a number. The error says how to fix it.
    """
    try:
        return torch.tensor(labels, dtype=_dtype(labels))
    except (TypeError, ValueError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        if texts := [label for label in labels if isinstance(label, str)]:
            remedy = f"{texts[0]!r} is a text: number the classes, as `dataset.class_encode_column('label')` does"
        elif None in labels:
            raise DataError(_missing("column 'label'", labels.index(None), "the first sample has one")) from error
        else:
            remedy = "give each sample a number, or pass a `data_collator`"
        raise DataError(f"The column 'label' cannot be stacked into a batch ({error}); {remedy}.") from error


def _label_ids(values: list[Any]) -> torch.Tensor:
    """Stack the values of the column `label_ids` into one tensor.

    Raises:
        DataError: if the values cannot be stacked.
    """
    try:
        if isinstance(values[0], torch.Tensor):
            return torch.stack([*map(torch.as_tensor, values)])
        rows = [*map(_bool, values)]
        return torch.tensor(np.asarray(rows) if _has_array(rows) else rows, dtype=_dtype(rows))
    except (TypeError, ValueError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        raise _unstackable("column 'label_ids'", values, error) from error


def _first_value(key: str, features: list[Any]) -> int | None:
    """Return the index of the first sample that has a value for the column `key`; None if no sample has a value."""
    return next((row for row, feature in enumerate(features) if feature.get(key) is not None), None)


def _missing(name: str, row: int, others: str) -> str:
    return (
        f"The {name} has no value in sample {row} of a batch, and {others}. Fill missing values with `dataset.map`, "
        "remove such rows with `dataset.filter`, or pass a `data_collator`."
    )


def _number(label: Any) -> Any:
    """Convert a tensor of one element, or a NumPy bool, to a Python number. Return any other label unchanged."""
    return label.item() if isinstance(label, torch.Tensor) and label.numel() == 1 else _bool(label)


def _bool(label: Any) -> Any:
    """Convert a NumPy bool to a Python bool, from which torch can make an int64. Return any other label unchanged."""
    return bool(label) if isinstance(label, np.bool_) else label


def _has_array(rows: list[Any]) -> bool:
    return any(isinstance(row, np.ndarray) for row in rows)


def _dtype(labels: Any) -> torch.dtype:
    """Return the dtype of the labels of a batch: int64 if all labels are integers or booleans, else float32."""
    return torch.int64 if _are_integers(labels) else torch.float32


def _are_integers(labels: Any) -> bool:
    if isinstance(labels, (torch.Tensor, np.ndarray)):
        whole = not labels.dtype.is_floating_point if isinstance(labels, torch.Tensor) else labels.dtype.kind in "iub"
        return bool(whole)
    if isinstance(labels, (list, tuple)):
        return all(map(_are_integers, labels))
    return isinstance(labels, (int, np.integer, np.bool_))


_MEDIA = ("PIL", "datasets", "torchcodec")
"""The packages with the classes of decoded images, sounds and videos."""


def _stack(name: str, values: Sequence[Any]) -> torch.Tensor:
    """Stack the values of one column into a tensor of shape (rows, ...). `name` names the column in errors.

    Raises:
        DataError: if the values cannot be stacked.
    """
    try:
        if isinstance(values[0], torch.Tensor):
            return torch.stack([*values] if {*map(type, values)} == {torch.Tensor} else [*map(torch.as_tensor, values)])
        if isinstance(values[0], np.ndarray):
            return torch.from_numpy(np.stack(values))
        return torch.tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        raise _unstackable(name, values, error) from error


def _unstackable(name: str, values: Sequence[Any], error: Exception) -> DataError:
    """Return the error for values that cannot be stacked, with a remedy.

    Args:
        name: names the values, such as `column 'x'`.
        values: one value per sample.
        error: the error of torch or NumPy.
    """
    if type(values[0]).__module__.partition(".")[0] in _MEDIA:
        return DataError(
            f"The {name} holds values of type {type(values[0]).__name__}, which do not stack. Turn them "
            "into tensors with your processor: `dataset.with_transform(function)`, or in a `data_collator`. "
            "`dataset.with_format('torch')` suffices for images of one size."
        )
    missing = next((row for row, value in enumerate(values) if value is None), None)
    if missing is not None:
        return DataError(_missing(name, missing, "the others have one"))
    text = next((row for row, value in enumerate(values) if isinstance(value, str)), None)
    if text is not None:
        return DataError(mixed(name, text, values[text], 0))
    sizes = sorted({len(value) for value in values if hasattr(value, "__len__") and getattr(value, "ndim", None) != 0})
    shapes = sorted({tuple(value.shape) for value in values if hasattr(value, "shape")})
    if len(sizes) > 1:
        remedy = f"The values have lengths {sizes[:5]}: pass a `processing_class` that pads, or a `data_collator`."
    elif len(shapes) > 1:
        remedy = f"The values have shapes {shapes[:5]}: give all one shape, or pass a `data_collator` that pads."
    else:
        remedy = "Pass a `data_collator` that turns it into a tensor, or remove the column."
    return DataError(f"The {name} cannot be stacked into a batch ({error}). {remedy}")


@dataclass
class ColumnFilter:
    """A collator that removes columns from the samples, and then calls another collator.

    Samples that are not dicts stay unchanged.
    """

    collator: Collator
    """Makes the batch."""
    accepted: frozenset[str]
    """Columns to keep: the columns that the model or the loss uses."""

    def __call__(self, features: list[Any]) -> Any:
        # The default collator takes the columns of the first sample, so checking this one suffices.
        checked = features[:1] if self.collator is default_data_collator else features
        if isinstance(features[0], dict) and not all(map(self.accepted.issuperset, checked)):
            features = [{key: row[key] for key in row if key in self.accepted} for row in features]
        return self.collator(features)
