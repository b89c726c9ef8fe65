"""Collators that pad with a tokenizer: the names, arguments and results of transformers', which is not needed for them.

A tokenizer is here any object with a method `pad(rows, padding=..., return_tensors="pt")` that returns a dict of
tensors, and with a `padding_side`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ....events.errors import DataError
from .default import only_torch

IGNORED = -100
"""The label that no loss counts."""


class Padding:
    """What collators that pad have in common."""

    tokenizer: Any
    padding: Any
    max_length: int | None
    pad_to_multiple_of: int | None

    def _padded(self, rows: list[Any], tensors: str = "pt") -> Any:
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
    """Pads rows to the longest of the batch with the tokenizer's own `pad`, and renames `label` to `labels`."""

    tokenizer: Any
    """Pads the rows."""
    padding: Any = True
    """True or 'longest': to the longest row; 'max_length': to `max_length`; False or 'do_not_pad': not at all."""
    max_length: int | None = None
    """The length to pad to, in tokens; None leaves it to the tokenizer."""
    pad_to_multiple_of: int | None = None
    """Pad on to a multiple of so many tokens, which some devices compute faster with."""
    return_tensors: str = "pt"
    """The tensors that the tokenizer makes; 'pt' are torch's."""

    def __call__(self, features: list[Any]) -> Any:
        """Return the batch of `features`, rows as the tokenizer makes them."""
        batch = self._padded(features, self.return_tensors)
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


@dataclass
class DataCollatorForTokenClassification(Padding):
    """Pads rows, and the labels of their tokens to the same length."""

    tokenizer: Any
    """Pads the rows; its `padding_side` is the labels' too."""
    padding: Any = True
    """True or 'longest': to the longest row; 'max_length': to `max_length`; False or 'do_not_pad': not at all."""
    max_length: int | None = None
    """The length to pad to, in tokens; None leaves it to the tokenizer."""
    pad_to_multiple_of: int | None = None
    """Pad on to a multiple of so many tokens."""
    label_pad_token_id: int = IGNORED
    """What labels are padded with; -100 is ignored by torch's losses."""
    return_tensors: str = "pt"
    """'pt', torch's tensors; there are no others here."""

    def __call__(self, features: list[Mapping[str, Any]], return_tensors: str | None = None) -> Any:
        """Return the batch of `features`, dicts with `input_ids` and perhaps `labels` or `label`, one for each token.

        Raises:
            DataError: if a row has more labels than the batch has tokens.
        """
        only_torch(self.return_tensors if return_tensors is None else return_tensors)
        name, labels, rows = split_labels(features)
        batch = self._padded(rows)
        if labels is not None:
            width = batch["input_ids"].shape[1]
            batch[name] = pad_labels(labels, width, self.label_pad_token_id, self.tokenizer.padding_side)
        return batch


@dataclass
class DataCollatorForSeq2Seq(Padding):
    """Pads rows, and their labels to a length of their own: that of the longest label."""

    tokenizer: Any
    """Pads the rows; its `padding_side` is the labels' too."""
    model: Any = None
    """Makes the decoder's inputs from the labels, where it has `prepare_decoder_input_ids_from_labels`."""
    padding: Any = True
    """True or 'longest': to the longest row; 'max_length': to `max_length`; False or 'do_not_pad': not at all."""
    max_length: int | None = None
    """The length to pad to, in tokens; None leaves it to the tokenizer, and pads labels to the longest."""
    pad_to_multiple_of: int | None = None
    """Pad rows and labels on to a multiple of so many tokens."""
    label_pad_token_id: int = IGNORED
    """What labels are padded with; -100 is ignored by torch's losses."""
    return_tensors: str = "pt"
    """'pt', torch's tensors; there are no others here."""

    def __call__(self, features: list[Mapping[str, Any]], return_tensors: str | None = None) -> Any:
        """Return the batch of `features`, dicts with perhaps `labels` or `label`; without them, its `labels` is None.

        Raises:
            DataError: if a label is longer than `max_length`, or they differ in length and are not to be padded.
        """
        only_torch(self.return_tensors if return_tensors is None else return_tensors)
        _, labels, rows = split_labels(features)
        batch = self._padded(rows)
        if labels is None or all(label is None for label in labels):
            batch["labels"] = None
            return batch
        width = self._label_width([len(label) for label in labels])
        batch["labels"] = pad_labels(labels, width, self.label_pad_token_id, self.tokenizer.padding_side)
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch

    def _label_width(self, lengths: list[int]) -> int:
        if self.padding is False or self.padding == "do_not_pad":
            if len(set(lengths)) > 1:
                raise DataError(
                    f"The labels have lengths {sorted(set(lengths))[:5]}, and `padding={self.padding!r}` leaves them "
                    "so, of which no batch can be made: give `padding=True`."
                )
            return lengths[0]
        width = self.max_length if self.padding == "max_length" else None
        return round_up(max(lengths) if width is None else width, self.pad_to_multiple_of)


def pad_rows(tokenizer: Any, rows: list[Any], **options: Any) -> Any:
    """Return what the tokenizer's `pad` makes of `rows`; of the options, it is given those that are not None.

    Transformers' fast tokenizers warn that padding later than tokenizing is slower, which here is on purpose.
    """
    with _without_advice(tokenizer):
        return tokenizer.pad(rows, **{name: value for name, value in options.items() if value is not None})


def split_labels(features: list[Mapping[str, Any]]) -> tuple[str, list[Any] | None, list[dict[str, Any]]]:
    """Return what the labels are called, the labels (None where there are none), and the rows without them."""
    name = "label" if "label" in features[0] else "labels"
    labels = [feature[name] for feature in features] if name in features[0] else None
    return name, labels, [{key: feature[key] for key in feature if key != name} for feature in features]


def pad_labels(labels: list[Any], width: int, value: int, side: str) -> torch.Tensor:
    """Return labels of different lengths as one int64 tensor of shape (rows, width), filled up with `value`.

    Raises:
        DataError: if one is longer than `width`.
    """
    padded = torch.full((len(labels), width), value, dtype=torch.int64)
    for row, label in zip(padded, labels):
        numbers = torch.as_tensor(label, dtype=torch.int64)
        length = len(numbers)
        if length > width:
            raise DataError(
                f"A row has {length} labels, and the batch is {width} tokens wide: cut the labels when the rows are "
                "tokenized, or give the collator a greater `max_length`."
            )
        row[slice(length) if side == "right" else slice(width - length, width)] = numbers
    return padded


def round_up(length: int, multiple: int | None) -> int:
    """Return the next multiple of `multiple` from `length` on, or `length` itself where there is none."""
    return length if multiple is None else -(-length // multiple) * multiple


_ADVICE = "Asking-to-pad-a-fast-tokenizer"


@contextmanager
def _without_advice(tokenizer: Any) -> Iterator[None]:
    given: dict[str, bool] = getattr(tokenizer, "deprecation_warnings", {})
    before = given.get(_ADVICE, False)
    given[_ADVICE] = True
    try:
        yield
    finally:
        given[_ADVICE] = before
