"""The samples of a dry batch.

These are the longest samples if their lengths are known without reading the samples, otherwise the first samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...data.batches import IGNORED_LABEL
from ...data.build import is_iterable, length_of
from ...data.columns.lengths import column_lengths
from ...data.loader import Loader
from ...data.packing.collator import joins_samples
from ...data.workers.startup import WorkerCollator

_LISTED = 200_000
"""If the dataset is a list with at most this number of samples, the length of each sample is read. This takes about 20
milliseconds at most."""
_DRAWN = 100_000
"""The largest number of samples from which the padding of the run is estimated."""


class NoBatch(Exception):
    """The error for a training loader from which a dry batch cannot make a batch. The text of the error says why."""


@dataclass(frozen=True)
class Source:
    """The parts of a loader that make a batch."""

    dataset: Any
    """A map-style dataset."""
    collate: Any
    """The function that makes a batch from a list of samples."""
    size: int
    """The number of samples per batch."""
    lengths: np.ndarray[Any, Any] | None
    """The length of each sample; None if only reading the samples gives the lengths."""
    known_by: str
    """The source of the lengths as text, such as "the column 'length'"; empty if the lengths are not known."""
    grouped: bool
    """Whether batches have samples of similar length."""
    packs: bool
    """Whether the collator joins several samples into one row."""

    def chosen(self) -> tuple[list[int], str]:
        """Return the dataset indices of the samples, and a text that says how they were chosen."""
        if self.lengths is None:
            rows = list(range(min(self.size, len(self.dataset))))
            return rows, "the first ones; their lengths are not known without reading all samples"
        order = np.argsort(-self.lengths, kind="stable")[: self.size]
        return order.tolist(), f"the longest ones, by {self.known_by}"

    def padding_of_run(self) -> float | None:
        """Return the estimated share of padding in the batches of the run, from 0 to 1; None if it is not known."""
        if self.lengths is None or self.packs or self.size < 2:
            return None
        return padding_share(self.lengths, self.size, self.grouped)


def source_of(loader: Any, dataset: Any, size: int, length_column: str, main_input: str) -> Source:
    """Return the parts of a training loader that a dry batch needs, such as dataset, collator and sample lengths.

    Args:
        loader: the training loader.
        dataset: the training dataset of the user.
        size: the number of samples per batch, if the Trainer built the loader. For any other loader, the function uses
            `loader.batch_size`.
        length_column: the column with the length of each sample.
        main_input: a key, such as `input_ids`. The length of a sample is the length of its value for this key.

    Raises:
        NoBatch: if the dataset is a stream, or has no samples or no length. Also if the loader has no `dataset`, no
            `collate_fn` or no `batch_size`. A loader with its own batch sampler has no `batch_size`.
    """
    rows, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if rows is None or collate is None:
        raise NoBatch(f"the loader, a {type(loader).__name__}, has no `dataset` and `collate_fn`")
    if is_iterable(rows):
        raise NoBatch("the dataset is a stream. If it can be read only once, the training would miss the samples")
    if not isinstance(loader, Loader) and not isinstance(getattr(loader, "batch_size", None), int):
        raise NoBatch(f"the loader, a {type(loader).__name__}, has a batch sampler of its own")
    if not length_of(rows):
        raise NoBatch("the dataset has no samples or no length")
    if isinstance(collate, WorkerCollator):
        collate = collate.collator
    grouping = loader.grouping if isinstance(loader, Loader) else None
    lengths: list[Any] | None
    if grouping is not None:
        lengths, known_by = list(grouping.lengths), "the lengths that group the samples"
    else:
        lengths, known_by = _known_lengths(rows, dataset, length_column, main_input)
    found = None if lengths is None or len(lengths) != len(rows) else np.asarray(lengths)
    size = size if isinstance(loader, Loader) else loader.batch_size
    return Source(rows, collate, size, found, known_by, grouping is not None, joins_samples(collate))


def _known_lengths(rows: Any, dataset: Any, length_column: str, main_input: str) -> tuple[list[Any] | None, str]:
    """Return the length of each sample, and the source of the lengths, such as the text `the column 'length'`.

    The lengths come from a column, or from the samples if `rows` is a list with at most `_LISTED` samples. If neither
    gives the lengths, return None and an empty text.

    Args:
        rows: the dataset of the loader.
        dataset: the dataset of the user. It may have columns that the loader drops.
        length_column: the column with the length of each sample.
        main_input: a key, such as `input_ids`. The length of a sample is the length of its value for this key.
    """
    for name, measured in ((length_column, True), (main_input, False)):
        for each in (rows, dataset):  # the loader drops columns that the model does not take
            lengths = column_lengths(each, name, measured)
            if lengths is not None:
                return lengths, f"the column {name!r}" if measured else f"the length of {name!r}"
    if isinstance(rows, (list, tuple)) and len(rows) <= _LISTED and isinstance(rows[0], dict):
        name = length_column if isinstance(rows[0].get(length_column), int) else main_input
        try:
            values = [row[name] if name == length_column else len(row[name]) for row in rows]
        except (KeyError, TypeError):
            return None, ""
        return values, f"the column {name!r}" if name == length_column else f"the length of {name!r}"
    return None, ""


def padding_share(lengths: Sequence[float] | np.ndarray[Any, Any], size: int, grouped: bool) -> float:
    """Estimate the share of padding, from 0 to 1, if each batch is padded to its longest sample.

    Args:
        lengths: the length of each sample.
        size: the number of samples per batch.
        grouped: whether batches have samples of similar length. If False, batches have random samples.
    """
    numbers = np.asarray(lengths, dtype=np.float64)
    order = np.random.default_rng(0).permutation(len(numbers))[:_DRAWN]  # a generator of its own
    drawn = np.sort(numbers[order]) if grouped else numbers[order]
    starts = np.arange(0, len(drawn), size)
    widths = np.maximum.reduceat(drawn, starts)
    counts = np.minimum(size, len(drawn) - starts)
    room = float((widths * counts).sum())
    return 0.0 if room == 0 else 1.0 - float(drawn.sum()) / room


def shapes_of(batch: Any) -> dict[str, str]:
    """Return dtype and shape of each tensor of a batch as text, by the name or position of the tensor."""
    if isinstance(batch, torch.Tensor):
        return {"batch": described(batch)}
    named = (
        batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    )
    return {
        str(name) if isinstance(batch, Mapping) else f"batch[{name}]": described(value)
        for name, value in named
        if isinstance(value, torch.Tensor)
    }


def described(tensor: torch.Tensor) -> str:
    """Return dtype and shape of a tensor as text."""
    return f"{str(tensor.dtype).removeprefix('torch.')}, shape {tuple(tensor.shape)}"


def masked_share(labels: Any) -> float | None:
    """Return the share of labels that are -100, from 0 to 1; None if there are no integer labels."""
    parts = labels if isinstance(labels, (tuple, list)) else [labels]
    whole = [part for part in parts if isinstance(part, torch.Tensor) and part.numel() and not part.is_floating_point()]
    counts = sum(part.numel() for part in whole)
    return sum(int((part == IGNORED_LABEL).sum()) for part in whole) / counts if counts else None


def padding_of(batch: Any, main_input: str, pad: int | None) -> float | None:
    """Return the share of padding in a batch of tokens, from 0 to 1.

    Return None for a batch without tokens. Also return None for a batch without an attention mask if `pad` is None.

    Args:
        batch: the batch.
        main_input: the key of the tokens in the batch, such as `input_ids`.
        pad: the id of the padding token; None if it is not known.
    """
    kept = _kept_tokens(batch, main_input, pad)
    return None if kept is None else 1.0 - float(kept.float().mean())


def _kept_tokens(batch: Any, main_input: str, pad: int | None) -> torch.Tensor | None:
    """Return a tensor of shape (samples, width) that is True for tokens and False for padding; None if not known."""
    if not isinstance(batch, Mapping):
        return None
    mask, tokens = batch.get("attention_mask"), batch.get(main_input)
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.numel():
        return mask.ne(0)
    if pad is not None and isinstance(tokens, torch.Tensor) and tokens.dim() == 2 and tokens.numel():
        return tokens.ne(pad)
    return None


def lengths_in(batch: Any, main_input: str, pad: int | None) -> tuple[list[int], int]:
    """Return the number of tokens in each sample, not counting padding, and the width of the batch.

    Return [] and 0 for a batch without tokens. Also return them for a batch without an attention mask if `pad` is None,
    because its padding is not known.

    Args:
        batch: the batch.
        main_input: the key of the tokens in the batch, such as `input_ids`.
        pad: the id of the padding token; None if it is not known.
    """
    kept = _kept_tokens(batch, main_input, pad)
    return ([], 0) if kept is None else (kept.sum(1).tolist(), kept.shape[1])


def padding_to_longest(lengths: list[int]) -> float | None:
    """Return the share of padding of a batch that is padded to its longest sample; None if no sample has a token."""
    room = max(lengths, default=0) * len(lengths)
    return 1.0 - sum(lengths) / room if room else None


def include_padding(known: list[int], lengths: list[int], width: int) -> bool:
    """Return whether the dataset contains padding, because tokenization padded the samples.

    A sample contains padding if its length in the dataset is above its number of tokens in the batch. A sample that is
    longer than the width of the batch does not count, because the collator may have truncated it.

    Args:
        known: for each sample of a batch, its length in the dataset.
        lengths: for each of these samples, its length in the batch, without padding.
        width: the width of the batch.
    """
    return len(known) == len(lengths) and any(now < was <= width for was, now in zip(known, lengths))


def max_length_of(model: Any, processor: Any) -> int | None:
    """Return the maximum length of the tokenizer or of the model, whichever is smaller; None if neither has one."""
    config = getattr(model, "config", None)
    known = (getattr(processor, "model_max_length", None), getattr(config, "max_position_embeddings", None))
    # A tokenizer without a limit has a number of 30 digits as `model_max_length`.
    limits = [limit for limit in known if isinstance(limit, int) and 0 < limit < 10**7]
    return min(limits, default=None)
