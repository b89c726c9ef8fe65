"""Padding from columns, with the same result as the method `pad` of a tokenizer of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ....events.imported import imported
from .rows import NotColumnar
from .table import Cells, TableRows

_METHODS = ("pad", "_pad", "_get_padding_truncation_strategies")
"""The methods of a tokenizer that decide how it pads."""
_ENDLESS = int(1e20)
"""If the `model_max_length` of a tokenizer is larger, the tokenizer has no maximum length."""


def is_usual(tokenizer: Any) -> bool:
    """Return whether a tokenizer pads with the unchanged methods of transformers' `PreTrainedTokenizerBase`.

    The function `padded` has the same result as `tokenizer.pad` only for such a tokenizer.
    """
    module = imported("transformers.tokenization_utils_base")
    base = getattr(module, "PreTrainedTokenizerBase", None)
    if base is None or not isinstance(tokenizer, base):
        return False
    own, cls = vars(tokenizer), type(tokenizer)
    return all(name not in own and getattr(cls, name, None) is getattr(base, name, None) for name in _METHODS)


def pad(rows: TableRows, tokenizer: Any, options: Mapping[str, Any], slow: Callable[[list[Any]], Any]) -> Any:
    """Make a padded batch from columns with the function `padded`.

    The function compares the first batch of each kind with the batch that `slow` makes from the same samples. Batches
    of one kind have the same tokenizer class, padding side, `options` and `rows.kind`. Batches in which all samples are
    equally long are of another kind than other batches.

    Args:
        rows: the samples.
        tokenizer: the tokenizer.
        options: options of the tokenizer's `pad`.
        slow: pads the samples with the tokenizer.

    Raises:
        NotColumnar: if `padded` cannot make the batch, or if the two compared batches of this kind differ.
    """
    if options.get("return_tensors") != "pt" or not is_usual(tokenizer):
        raise NotColumnar
    name = tokenizer.model_input_names[0]
    if name not in rows.names:
        raise NotColumnar
    lengths = rows.numbers(name).lengths
    is_even = bool((lengths == lengths[0]).all())
    what = ("pad", type(tokenizer), tokenizer.padding_side, repr(options), is_even)
    return rows.proved(what, lambda: padded(rows, tokenizer, options), slow)


def padded(rows: TableRows, tokenizer: Any, options: Mapping[str, Any]) -> Any:
    """Build a batch from columns. The batch equals the result of `tokenizer.pad(rows, **options)`.

    Args:
        rows: the samples.
        tokenizer: a tokenizer for which the function `is_usual` returns True.
        options: options of `tokenizer.pad`.

    Returns:
        A `BatchEncoding` with one tensor per column. The tensors of padded columns have the shape (samples, tokens).

    Raises:
        NotColumnar: if the columns cannot make the batch.
    """
    inputs: list[str] = tokenizer.model_input_names
    cells = {name: rows.numbers(name) for name in rows.names}
    lengths = cells[inputs[0]].lengths
    longest, shortest = int(lengths.max()), int(lengths.min())
    if not longest or cells[inputs[0]].column.type.kind not in "iu":
        raise NotColumnar
    width = _width(tokenizer, options, longest)
    masks = "attention_mask" in inputs
    batch: dict[str, torch.Tensor] = {}
    if width is None or shortest == longest == width:
        batch = {name: _passed(each) for name, each in cells.items()}
    elif longest > width:
        raise NotColumnar
    else:
        fills = {"token_type_ids": tokenizer.pad_token_type_id, "special_tokens_mask": 1}
        fills |= {"attention_mask": 0} if masks else {}
        fills[inputs[0]] = tokenizer.pad_token_id
        side = tokenizer.padding_side
        for name, each in cells.items():
            if name not in fills:
                batch[name] = _passed(each)
            elif (each.lengths == lengths).all() and type(fills[name]) is int:
                batch[name] = each.padded(width, fills[name], side)
            else:
                raise NotColumnar
    if masks and "attention_mask" not in batch:
        batch["attention_mask"] = _mask(lengths.tolist(), width or longest, tokenizer.padding_side)
    made: Any = imported("transformers.tokenization_utils_base").BatchEncoding(batch)
    return made


def _width(tokenizer: Any, options: Mapping[str, Any], longest: int) -> int | None:
    """Return the number of tokens to which samples are padded; None if they are not padded.

    `longest` is the number of tokens of the longest sample.

    Raises:
        NotColumnar: for options that the tokenizer refuses, or if a tokenizer that must pad has no padding token.
    """
    padding, width = options.get("padding", True), options.get("max_length")
    strategy = padding if isinstance(padding, bool) else str(getattr(padding, "value", padding))
    if strategy in (False, "do_not_pad"):
        return None
    if strategy in (True, "longest"):
        width = longest
    elif strategy != "max_length":
        raise NotColumnar
    elif width is None and tokenizer.model_max_length > _ENDLESS:
        return None
    elif width is None:
        width = tokenizer.model_max_length
    multiple = options.get("pad_to_multiple_of")
    if type(width) is not int or not (multiple is None or (type(multiple) is int and multiple > 0)):
        raise NotColumnar
    if tokenizer.pad_token is None or tokenizer.pad_token_id < 0:
        raise NotColumnar
    return width if multiple is None else -(-width // multiple) * multiple


def _passed(cells: Cells) -> torch.Tensor:
    """Convert a column to a tensor without padding. Floats get torch's default dtype, as from `tokenizer.pad`."""
    values = cells.stacked()
    return values.to(torch.get_default_dtype()) if cells.is_floating else values


def _mask(lengths: list[int], width: int, side: str) -> torch.Tensor:
    """Build the attention mask of shape (samples, width), int64: 1 for tokens, and 0 for padding."""
    mask = torch.zeros(len(lengths), width, dtype=torch.int64)
    view = mask.numpy()
    for row, length in zip(view, lengths):
        row[slice(length) if side == "right" else slice(width - length, width)] = 1
    return mask
