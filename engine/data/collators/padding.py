"""Collators that pad with a tokenizer, with the names, arguments and results of transformers' collators.

They do not need transformers. A tokenizer is any object with a `padding_side` and a method
`pad(rows, padding=..., return_tensors="pt")` that returns a dict of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ....events.errors import DataError
from ....events.keywords import CheckedKeywords
from ..batches import IGNORED_LABEL
from ..columns.padding import pad
from ..columns.table import Cells, TableRows
from .default import as_type


class Padding(CheckedKeywords):
    """Base class of the collators that pad with a tokenizer."""

    tokenizer: Any
    padding: Any
    max_length: int | None
    pad_to_multiple_of: int | None

    def _padded(self, rows: list[Any], tensors: str = "pt") -> Any:
        """Pad samples with the tokenizer's `pad`, and return the batch. `pad` gets `tensors` as `return_tensors`."""
        return pad_rows(
            self.tokenizer,
            rows,
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=tensors,
        )


@dataclass
class DataCollatorWithPadding(Padding):
    """Pads samples with the tokenizer's `pad`, by default to the longest sample of the batch.

    The collator renames `label` and `label_ids` to `labels`.
    """

    tokenizer: Any
    """Pads the samples."""
    padding: Any = True
    """Pad to the longest sample (True, 'longest'), to `max_length` ('max_length'), or not (False, 'do_not_pad')."""
    max_length: int | None = None
    """Length to pad to, in tokens, if `padding` is 'max_length'. None uses the tokenizer's maximum."""
    pad_to_multiple_of: int | None = None
    """Pad to a multiple of this number of tokens, which is faster on some devices. None pads to no multiple."""
    return_tensors: str = "pt"
    """Type of tensors that the tokenizer makes; 'pt' means torch."""

    def __call__(self, features: list[Any]) -> Any:
        """Pad samples and return the batch. `features` are dicts, as the tokenizer makes them from texts."""
        batch = self._padded(features, self.return_tensors)
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


@dataclass
class DataCollatorForTokenClassification(Padding):
    """Pads samples, and pads the labels of their tokens to the same length."""

    tokenizer: Any
    """Pads the samples. Labels are padded on its `padding_side` too."""
    padding: Any = True
    """Pad to the longest sample (True, 'longest'), to `max_length` ('max_length'), or not (False, 'do_not_pad')."""
    max_length: int | None = None
    """Length to pad to, in tokens, if `padding` is 'max_length'. None uses the tokenizer's maximum."""
    pad_to_multiple_of: int | None = None
    """Pad to a multiple of this number of tokens. None pads to no multiple."""
    label_pad_token_id: int = IGNORED_LABEL
    """Fills up labels. torch's losses ignore -100."""
    return_tensors: str = "pt"
    """Type of the result: 'pt' for torch tensors, 'np' for NumPy arrays."""

    def __call__(self, features: list[Mapping[str, Any]], return_tensors: str | None = None) -> Any:
        """Pad samples and return the batch.

        Args:
            features: dicts with `input_ids`, and optionally `labels` or `label`: a list with one label per token.
            return_tensors: 'pt' or 'np'. None uses the attribute of the same name.

        Raises:
            DataError: if a sample has more labels than a row of the batch has tokens.
            ArgumentError: if `return_tensors` is neither 'pt' nor 'np'.
        """
        return as_type(self._batch(features), self.return_tensors if return_tensors is None else return_tensors)

    def _batch(self, features: list[Mapping[str, Any]]) -> Any:
        name, labels, rows = split_labels(features)
        batch = self._padded(rows)
        if labels is not None:
            width = batch["input_ids"].shape[1]
            batch[name] = pad_labels(labels, width, self.label_pad_token_id, self.tokenizer.padding_side)
        return batch


@dataclass
class DataCollatorForSeq2Seq(Padding):
    """Pads samples and their labels, by default to the longest sample and the longest labels of the batch."""

    tokenizer: Any
    """Pads the samples. Labels are padded on its `padding_side` too."""
    model: Any = None
    """The model. If it has the method `prepare_decoder_input_ids_from_labels`, the collator calls this method to add
    `decoder_input_ids` to the batch."""
    padding: Any = True
    """Pad to the longest sample (True, 'longest'), to `max_length` ('max_length'), or not (False, 'do_not_pad')."""
    max_length: int | None = None
    """Length to pad samples and labels to, in tokens, if `padding` is 'max_length'. None pads samples to the
    tokenizer's maximum, and labels to the longest labels of the batch."""
    pad_to_multiple_of: int | None = None
    """Pad samples and labels to a multiple of this number of tokens. None pads to no multiple."""
    label_pad_token_id: int = IGNORED_LABEL
    """Fills up labels. torch's losses ignore -100."""
    return_tensors: str = "pt"
    """Type of the result: 'pt' for torch tensors, 'np' for NumPy arrays."""

    def __call__(self, features: list[Mapping[str, Any]], return_tensors: str | None = None) -> Any:
        """Pad samples and return the batch.

        The batch has the labels under the key `labels`. The value is None if the samples have no labels.

        Args:
            features: dicts, optionally with token ids in `labels` or `label`.
            return_tensors: 'pt' or 'np'. None uses the attribute of the same name.

        Raises:
            DataError: if `padding` is 'max_length' and a sample has more labels than `max_length`, or if `padding` is
                off and the samples have different numbers of labels.
            ArgumentError: if `return_tensors` is neither 'pt' nor 'np'.
        """
        return as_type(self._batch(features), self.return_tensors if return_tensors is None else return_tensors)

    def _batch(self, features: list[Mapping[str, Any]]) -> Any:
        _, labels, rows = split_labels(features)
        batch = self._padded(rows)
        if labels is None or (isinstance(labels, list) and all(label is None for label in labels)):
            batch["labels"] = None
            return batch
        lengths = labels.lengths.tolist() if isinstance(labels, Cells) else [len(label) for label in labels]
        width = self._label_width(lengths)
        batch["labels"] = pad_labels(labels, width, self.label_pad_token_id, self.tokenizer.padding_side)
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch

    def _label_width(self, lengths: list[int]) -> int:
        """Return the width to which labels are padded. `lengths` has the number of labels of each sample.

        Raises:
            DataError: if `padding` is off and the lengths differ.
        """
        if self.padding is False or self.padding == "do_not_pad":
            if len(set(lengths)) > 1:
                raise DataError(
                    f"The labels have lengths {sorted(set(lengths))[:5]}, and with `padding={self.padding!r}` they "
                    "cannot form a batch. Pass `padding=True`."
                )
            return lengths[0]
        width = self.max_length if self.padding == "max_length" else None
        return round_up(max(lengths) if width is None else width, self.pad_to_multiple_of)


def pad_rows(tokenizer: Any, rows: list[Any], **options: Any) -> Any:
    """Pad `rows` with the tokenizer's `pad` and return the batch.

    Args:
        tokenizer: the tokenizer.
        rows: the samples.
        **options: options of `pad`. Options with the value None are left out.

    Raises:
        DataError: if the tokenizer has no padding token. All other errors are those of the tokenizer.
    """
    options = {name: value for name, value in options.items() if value is not None}

    def by_tokenizer(rows: list[Any]) -> Any:
        try:
            with _without_advice(tokenizer):
                return tokenizer.pad(rows, **options)
        except ValueError as error:
            pads = options.get("padding", True) not in (False, "do_not_pad")
            if pads and getattr(tokenizer, "pad_token_id", 0) is None:
                raise no_padding_token(tokenizer) from error
            raise

    return pad(rows, tokenizer, options, by_tokenizer) if isinstance(rows, TableRows) else by_tokenizer(rows)


def no_padding_token(tokenizer: Any) -> DataError:
    """Return the error for a collator that pads with a tokenizer without a padding token."""
    return DataError(
        f"The collator pads the samples, but the tokenizer ({type(tokenizer).__name__}) has no padding token. Set it, "
        "such as `tokenizer.pad_token = tokenizer.eos_token`."
    )


def split_labels(features: Any) -> tuple[str, Any, Any]:
    """Separate the labels from the samples.

    Returns:
        The key of the labels (`label` or `labels`), the labels of each sample (None if the samples have no labels), and
        the samples without labels.
    """
    if isinstance(features, TableRows):
        name = "label" if "label" in features.names else "labels"
        return (
            (name, features.numbers(name), features.without(name)) if name in features.names else (name, None, features)
        )
    name = "label" if "label" in features[0] else "labels"
    labels = [feature[name] for feature in features] if name in features[0] else None
    return name, labels, [{key: feature[key] for key in feature if key != name} for feature in features]


def pad_labels(labels: Any, width: int, value: int, side: str) -> torch.Tensor:
    """Pad labels of different lengths, and return one int64 tensor of shape (rows, width).

    Args:
        labels: a list with the labels of each sample, or a `Cells` object with the labels of all samples.
        width: width of the result.
        value: the value for the padding.
        side: side on which to pad: 'right' or 'left'.

    Raises:
        DataError: if a sample of a list has more than `width` labels.
        NotColumnar: if a sample of a `Cells` object has more than `width` labels, or a label is not an integer.
    """
    if isinstance(labels, Cells):
        return labels.padded(width, value, side)
    padded = torch.full((len(labels), width), value, dtype=torch.int64)
    for row, label in zip(padded, labels):
        numbers = torch.as_tensor(label, dtype=torch.int64)
        length = len(numbers)
        if length > width:
            raise DataError(
                f"A sample has {length} labels, but the batch is {width} tokens wide. Truncate the labels during "
                "tokenization, or give the collator a larger `max_length`."
            )
        row[slice(length) if side == "right" else slice(width - length, width)] = numbers
    return padded


def round_up(length: int, multiple: int | None) -> int:
    """Return `length` rounded up to a multiple of `multiple`; `length` itself if `multiple` is None."""
    return length if multiple is None else -(-length // multiple) * multiple


_ADVICE = "Asking-to-pad-a-fast-tokenizer"


@contextmanager
def _without_advice(tokenizer: Any) -> Iterator[None]:
    """Suppress, in a `with` block, the warning of transformers that padding after tokenization is slower."""
    warnings: dict[str, bool] = getattr(tokenizer, "deprecation_warnings", {})
    before = warnings.get(_ADVICE, False)
    warnings[_ADVICE] = True
    try:
        yield
    finally:
        warnings[_ADVICE] = before
