"""Packing: a data collator that puts several samples into one row, so that a batch needs almost no padding."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ....events.errors import ArgumentError, DataError
from ....events.keywords import CheckedKeywords
from ...loss.item_counts import loss_shifts_labels
from ...loss.signature import user_model
from ..batches import IGNORED_LABEL
from ..collators.padding import round_up
from .layout import Layout, layout_for
from .rows import STRATEGIES, packed_rows


@dataclass(eq=False)
class Packing(CheckedKeywords):
    """Packs the samples of a batch into few rows of tokens, for causal language models and token classification.

    A batch has the same samples as without packing, and gives the same loss and gradients within rounding.
    `docs/performance.md` lists two exceptions. Positions restart with each sample, and no token attends to another
    sample. For a causal model, the first label of each sample is masked. Evaluations and predictions pad the samples
    instead, so that their results have one entry for each sample.

    The trainer finds position ids and an attention mask with which the model separates the samples, and checks them on
    a few tokens. If packing gives wrong results for the model, the trainer raises an error.

    A sample is a dict with `input_ids`, and optionally `labels` and other columns with one value for each token. If the
    samples have no labels, a causal model uses their tokens as labels.

    Raises:
        ArgumentError: if `strategy` is unknown, or if `max_length` or `pad_to_multiple_of` is below 1.
    """

    max_length: int | None = None
    """Largest number of tokens in a row. None: the length of the longest sample of the batch. The time of attention
    grows with the square of this number. `flatten` ignores it."""
    strategy: str = "best_fit"
    """`best_fit` usually needs at most as many rows as `first_fit`. `first_fit` keeps the samples in order.
    `flatten` puts all samples into one row, as flash attention needs it. A model with flash attention always gets
    `flatten`."""
    pad_to_multiple_of: int | None = None
    """Pad rows to a multiple of this number of tokens. None pads to the longest row of the batch."""
    pad_token_id: int | None = None
    """The token id that fills up rows. None: the padding token of the model's configuration, else 0."""
    _layouts: Any = field(default_factory=weakref.WeakKeyDictionary, init=False, repr=False)
    """Model -> its layout, for each model for which `for_model` made a training collator."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            known = ", ".join(map(repr, STRATEGIES))
            raise ArgumentError(f"Packing(strategy={self.strategy!r}) is unknown. Set it to one of {known}.")
        for name in ("max_length", "pad_to_multiple_of"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"Packing({name}={value}) is not positive. Set {name} to 1 or more.")

    def for_model(self, model: nn.Module, training: bool) -> PackedCollator | PaddedCollator:
        """Build the collator for a model: a collator that packs the samples for training, else one that pads them.

        Args:
            model: the model, with or without wrappers.
            training: whether to build the collator for training.

        Raises:
            ModelError: if `training` is True and packing gives wrong results for the model.
        """
        model = user_model(model)
        shared = TokenSamples(self._pad_id(model), _predicts_next(model), self.pad_to_multiple_of)
        if not training:
            return PaddedCollator(shared)
        if model not in self._layouts:
            self._layouts[model] = layout_for(model)
        layout = self._layouts[model]
        return PackedCollator(shared, layout, self.max_length, "flatten" if layout.one_row else self.strategy)

    def __call__(self, features: list[Any]) -> Any:
        """Raise a `DataError`. Batches depend on the model, so only the collator from `for_model` can make batches."""
        raise DataError(
            "`Packing` makes the batches of a trainer, and does not know its model here. Pass it as `data_collator` to "
            "the Trainer, or call `Packing(...).for_model(model, training=True)` and use the result as collator."
        )

    def _pad_id(self, model: nn.Module) -> int:
        found = getattr(getattr(model, "config", None), "pad_token_id", None)
        return self.pad_token_id if self.pad_token_id is not None else found if isinstance(found, int) else 0


def _predicts_next(model: nn.Module) -> bool:
    """Return whether a model is causal: it predicts each token from the tokens before this token."""
    return loss_shifts_labels(model) or type(model).__name__.endswith(("LMHeadModel", "ForCausalLM"))


@dataclass(frozen=True)
class TokenSamples:
    """Reads and checks samples: dicts whose columns have one value for each token."""

    pad_token_id: int
    """The token id that fills up rows."""
    predicts_next: bool
    """Whether the model is causal. The tokens of samples without labels are then the labels, and the first label of
    each sample is masked."""
    multiple: int | None
    """Pad to a multiple of this number of tokens; None pads to the longest row."""

    def columns(self, features: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[torch.Tensor]], list[int]]:
        """Read the columns of samples. Strings, `attention_mask` and `position_ids` are left out.

        Returns:
            Two values: a dict with a list of one tensor per sample for each column, and a list with the number of
            tokens of each sample.

        Raises:
            DataError: if a sample has no tokens, other columns than the first sample, or padding before its last token,
                or if a column does not have one value for each token.
        """
        read = [self._sample(feature, number) for number, feature in enumerate(features)]
        names = read[0].keys()
        for number, sample in enumerate(read):
            if sample.keys() != names:
                raise DataError(
                    f"Sample {number} of the batch has the columns {', '.join(sample)}, and sample 0 has "
                    f"{', '.join(names)}. Give all samples the same columns."
                )
        return {name: [sample[name] for sample in read] for name in names}, [len(each["input_ids"]) for each in read]

    def _sample(self, feature: Mapping[str, Any], number: int) -> dict[str, torch.Tensor]:
        if not isinstance(feature, Mapping) or "input_ids" not in feature or not len(feature["input_ids"]):
            raise DataError(
                f"Sample {number} of the batch has no `input_ids`, which `Packing` needs. Pass samples that are dicts "
                "with one or more tokens in `input_ids`."
            )
        values = {
            "labels" if name == "label" else name: torch.as_tensor(value)
            for name, value in feature.items()
            if value is not None and not isinstance(value, str)
        }
        length = len(values["input_ids"])
        for name, value in values.items():
            if not value.dim() or len(value) != length:
                shape = f"{len(value)} values" if value.dim() else "one value"
                raise DataError(
                    f"Column {name!r} of sample {number} of the batch has {shape} for {length} tokens. `Packing` needs "
                    "one for each token. Remove the column, or set `train_sampling_strategy='group_by_length'` in "
                    "place of `Packing`."
                )
        values.pop("position_ids", None)
        mask = values.pop("attention_mask", None)
        if mask is not None:
            length = int(mask.ne(0).sum())
            if not length or not bool(mask[:length].all()):
                raise DataError(
                    f"Sample {number} of the batch is padded at its start or inside. `Packing` takes samples without "
                    "padding. Tokenize with `padding=False`."
                )
            values = {name: value[:length] for name, value in values.items()}
        if "labels" not in values and self.predicts_next:
            values["labels"] = values["input_ids"].clone()
        return values

    def empty(self, name: str, like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """Return a column of padding, of shape (rows, width, ...).

        Args:
            name: name of the column, which decides the value of the padding.
            like: values of one sample in this column. They give the dtype and the dimensions after the width.
            rows: number of rows.
            width: number of tokens of a row.
        """
        fill = self.pad_token_id if name == "input_ids" else IGNORED_LABEL if name == "labels" else 0
        dtype = torch.int64 if not like.is_floating_point() else like.dtype
        return torch.full((rows, width, *like.shape[1:]), fill, dtype=dtype)


@dataclass(frozen=True)
class PackedCollator:
    """Packs the samples of a batch. Returns the inputs of the model, of shape (rows, width, ...)."""

    samples: TokenSamples
    """Reads the samples."""
    layout: Layout
    """Makes the position ids and the attention mask with which the model separates the samples."""
    max_length: int | None = None
    """Largest number of tokens in a row; None for the length of the longest sample of the batch."""
    strategy: str = "best_fit"
    """See `Packing.strategy`."""

    joins_samples = True
    """Whether a batch may have fewer rows than samples. The number of samples is then unknown from the batch."""

    def __call__(self, features: list[Any]) -> dict[str, torch.Tensor]:
        columns, lengths = self.samples.columns(features)
        longest = max(lengths)
        if self.max_length is not None and longest > self.max_length and self.strategy != "flatten":
            raise DataError(
                f"Sample {lengths.index(longest)} of the batch has {longest} tokens, and Packing(max_length="
                f"{self.max_length}) allows {self.max_length}. Truncate samples during tokenization, or raise "
                "`max_length`."
            )
        rows = packed_rows(lengths, self.max_length or longest, self.strategy)
        order = [sample for row in rows for sample in row]
        widths = [sum(lengths[sample] for sample in row) for row in rows]
        width = round_up(max(widths), self.samples.multiple)
        each = torch.tensor([lengths[sample] for sample in order])
        ends = torch.tensor([number * width + used for number, used in enumerate(widths)])
        total = int(each.sum())
        first = each.cumsum(0) - each  # the index of the first token of each sample
        within = torch.arange(total) - first.repeat_interleave(each)
        used = torch.tensor(widths)
        place = torch.arange(total) + (ends - used.cumsum(0)).repeat_interleave(used)
        batch = {}
        for name, values in columns.items():
            column = self.samples.empty(name, values[0], len(rows), width)
            joined = torch.cat([values[sample] for sample in order]).to(column.dtype)
            if name == "labels" and self.samples.predicts_next:
                joined[first] = IGNORED_LABEL
            column.flatten(0, 1)[place] = joined
            batch[name] = column
        segments = torch.full((len(rows) * width,), -1)
        segments[place] = torch.arange(len(order)).repeat_interleave(each)
        positions = torch.zeros(len(rows) * width, dtype=torch.int64)
        positions[place] = within
        shape = (len(rows), width)
        return {**batch, **self.layout.batch(batch["input_ids"], segments.view(shape), positions.view(shape))}


@dataclass(frozen=True)
class PaddedCollator:
    """Pads the samples of a batch on the right, for evaluations. Each sample is a row."""

    samples: TokenSamples
    """Reads the samples."""

    def __call__(self, features: list[Any]) -> dict[str, torch.Tensor]:
        columns, lengths = self.samples.columns(features)
        width = round_up(max(lengths), self.samples.multiple)
        batch = {name: self.samples.empty(name, values[0], len(lengths), width) for name, values in columns.items()}
        for name, values in columns.items():
            for row, value in zip(batch[name], values):
                row[: len(value)] = value
        batch["attention_mask"] = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
        return batch


def collator_for(collator: Any, model: nn.Module, training: bool) -> Any:
    """Return the collator to use in the loader of a model.

    If `collator` has the method `for_model`, as `Packing` has, return the result of this method. Otherwise return
    `collator`.
    """
    make = getattr(collator, "for_model", None)
    return collator if make is None else make(model, training)


def joins_samples(collator: Any) -> bool:
    """Return whether a collator puts several samples into one row, so that a batch has fewer rows than samples."""
    return bool(getattr(collator, "joins_samples", False))
