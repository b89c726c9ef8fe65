"""The collator of masked and causal language models, with the random draws of transformers' collator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ....events.errors import DataError
from ....events.keywords import CheckedKeywords
from ...arguments._base import refusal
from ..batches import IGNORED_LABEL
from ..columns.rows import BatchRows
from .default import as_type, check_type
from .padding import pad_rows, round_up


@dataclass
class DataCollatorForLanguageModeling(CheckedKeywords):
    """Pads samples and makes their labels.

    Without `mlm`, all tokens except padding are labels. With `mlm`, tokens are drawn for masking, and only
    these tokens are labels. Some of the drawn tokens become the mask token, some become a random token, and the others
    stay unchanged.
    """

    tokenizer: Any
    """Pads the samples. It has `pad_token_id` and `padding_side`. `mlm` also needs `mask_token_id`, a length, and
    `get_special_tokens_mask` for samples without a `special_tokens_mask`."""
    mlm: bool = True
    """Whether to mask tokens. If so, only the drawn tokens are labels. Otherwise all tokens except padding are labels.
    """
    whole_word_mask: bool = False
    """Whether to mask all tokens of a word together. Samples then need an `offset_mapping`."""
    mlm_probability: float | None = 0.15
    """Probability with which a token, or a word, is drawn for masking."""
    mask_replace_prob: float = 0.8
    """Fraction of the drawn tokens that become the mask token."""
    random_replace_prob: float = 0.1
    """Fraction of the drawn tokens that become a random token."""
    pad_to_multiple_of: int | None = None
    """Pad to a multiple of this number of tokens."""
    return_tensors: str = "pt"
    """Type of the result: 'pt' for torch tensors, 'np' for NumPy arrays."""
    seed: int | None = None
    """Seed of the collator's own generator; worker n adds n to it. None draws from torch's global generator."""

    def __post_init__(self) -> None:
        check_type(self.return_tensors)
        if problems := [*self._problems()]:
            raise refusal(problems)
        self.generator: torch.Generator | None = None
        if self.whole_word_mask and self.mask_replace_prob < 1:
            warnings.warn(
                "`whole_word_mask` replaces every drawn token with the mask token, so `mask_replace_prob` is set to 1 "
                "and `random_replace_prob` to 0.",
                UserWarning,
                stacklevel=3,
            )
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """Pad samples, and make a batch with their labels.

        Args:
            features: the samples: dicts as the tokenizer makes them, or plain lists of token ids.
            return_tensors: 'pt' or 'np'. None uses the attribute of the same name.

        Returns:
            A dict with `input_ids` and `labels` of shape (rows, tokens), and the other columns.

        Raises:
            DataError: if samples need padding and the tokenizer has no padding token.
        """
        return as_type(self._batch(features), self.return_tensors if return_tensors is None else return_tensors)

    def _batch(self, features: list[Any]) -> Any:
        if isinstance(features, BatchRows) or isinstance(features[0], Mapping):
            options = {"return_tensors": "pt", "pad_to_multiple_of": self.pad_to_multiple_of}
            batch = pad_rows(self.tokenizer, features, **options)
        else:
            batch = {"input_ids": self._joined(features)}
        special = batch.pop("special_tokens_mask", None)
        offsets = batch.pop("offset_mapping", None)
        if self.mlm:
            batch["input_ids"], batch["labels"] = self._masked(batch["input_ids"], special, offsets)
        else:
            labels = batch["input_ids"].clone()
            if self.tokenizer.pad_token_id is not None:
                labels[labels == self.tokenizer.pad_token_id] = IGNORED_LABEL
            batch["labels"] = labels
        return batch

    def _problems(self) -> Iterator[str]:
        """Yield an error text for each invalid attribute."""
        if self.mlm and getattr(self.tokenizer, "mask_token_id", None) is None:
            yield "The tokenizer has no mask token, which `mlm` needs. Pass `mlm=False` to train a causal model."
        if self.mlm and not (self.mlm_probability is not None and 0 <= self.mlm_probability <= 1):
            yield f"`mlm_probability` is {self.mlm_probability!r}. Set it to a probability between 0 and 1."
        if self.whole_word_mask and not self.mlm:
            yield "`whole_word_mask=True` masks words, but `mlm` is False. Set `mlm=True`."
        for name in ("mask_replace_prob", "random_replace_prob"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"`{name}` is {getattr(self, name)!r}. Set it to a fraction between 0 and 1."
        if self.mask_replace_prob + self.random_replace_prob > 1:
            yield (
                f"`mask_replace_prob={self.mask_replace_prob}` and `random_replace_prob={self.random_replace_prob}` "
                "are more than 1 together, but they are fractions of the same tokens. Lower one of them."
            )

    def _joined(self, rows: list[Any]) -> torch.Tensor:
        """Pad lists of token ids on the tokenizer's `padding_side`, and return them as a tensor (rows, tokens)."""
        tensors = [row if isinstance(row, torch.Tensor) else torch.tensor(row, dtype=torch.long) for row in rows]
        width = round_up(max(map(len, tensors)), self.pad_to_multiple_of)
        if all(len(row) == width for row in tensors):
            return torch.stack(tensors)
        if self.tokenizer.pad_token_id is None:
            raise DataError(
                f"The samples must be padded to {width} tokens, but the tokenizer ({type(self.tokenizer).__name__}) "
                "has no padding token. Set its `pad_token`, or cut the samples to one length."
            )
        joined = tensors[0].new_full((len(tensors), width), self.tokenizer.pad_token_id)
        for target, row in zip(joined, tensors):
            target[slice(len(row)) if self.tokenizer.padding_side == "right" else slice(width - len(row), width)] = row
        return joined

    def _masked(self, inputs: torch.Tensor, special: Any, offsets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw tokens, mask them, and return the changed inputs and their labels. Both have shape (rows, tokens).

        The label of a drawn token is the original token. All other labels are -100.

        Args:
            inputs: token ids, shape (rows, tokens). They are changed in place.
            special: which tokens are special, such as separators, shape (rows, tokens). Special tokens are never
                drawn. If it is None, the tokenizer finds them.
            offsets: index of the first character of each token in the text, and the index after its last, shape
                (rows, tokens, 2). Only `whole_word_mask` needs them.
        """
        if self.seed is not None and self.generator is None:
            worker = get_worker_info()
            self.generator = torch.Generator().manual_seed(self.seed + (0 if worker is None else worker.id))
        if special is None:
            special = [
                self.tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in inputs.tolist()
            ]
        special = torch.as_tensor(special).bool()
        drawable = _word_begins(self._checked(offsets), special) if self.whole_word_mask else ~special
        drawn = self._draw(self.mlm_probability, drawable)
        if self.whole_word_mask:
            drawn = _whole_words(drawable, drawn) & ~special
        labels = inputs.masked_fill(~drawn, IGNORED_LABEL)
        masked = drawn & self._draw(self.mask_replace_prob, torch.ones_like(drawn))
        inputs[masked] = self.tokenizer.mask_token_id
        if self.mask_replace_prob != 1 and self.random_replace_prob != 0:
            probability = self.random_replace_prob / (1 - self.mask_replace_prob)
            scrambled = self._draw(probability, torch.ones_like(drawn)) & drawn & ~masked
            random = torch.randint(len(self.tokenizer), inputs.shape, dtype=torch.long, generator=self.generator)
            inputs[scrambled] = random[scrambled].to(inputs.dtype)
        return inputs, labels

    def _draw(self, probability: float | None, of: torch.Tensor) -> torch.Tensor:
        """Select tokens at random.

        As in transformers, the random generator makes one number for every token, also for those that are not in `of`.

        Args:
            probability: the probability with which each token of `of` is selected. Not None.
            of: the tokens that can be selected, shape (rows, tokens), bool.

        Returns:
            The selected tokens, shape (rows, tokens), bool.
        """
        assert probability is not None
        chances = torch.full(of.shape, float(probability)).masked_fill(~of, 0.0)
        return torch.bernoulli(chances, generator=self.generator).bool()

    def _checked(self, offsets: Any) -> torch.Tensor:
        """Check that samples have the column `offset_mapping`, and return it as a tensor.

        Args:
            offsets: the column; None if the samples do not have it.

        Raises:
            DataError: if `offsets` is None.
        """
        if offsets is None:
            raise DataError(
                "`whole_word_mask` finds words by the position of their tokens in the text, but the samples have no "
                "`offset_mapping`. Tokenize with `return_offsets_mapping=True`, and keep the column."
            )
        return torch.as_tensor(offsets)


def _word_begins(offsets: torch.Tensor, special: torch.Tensor) -> torch.Tensor:
    """Return which tokens are the first of a word, shape (rows, tokens), bool.

    A token is the first of a word if it does not begin where the token before it ends, or if that token is special.

    Args:
        offsets: index of the first character of each token in the text, and the index after its last, shape
            (rows, tokens, 2).
        special: which tokens are special, shape (rows, tokens), bool.
    """
    begins = ~special
    joins = offsets[:, 1:, 0] == offsets[:, :-1, 1]
    begins[:, 1:] &= ~joins | special[:, :-1]
    return begins


def _whole_words(begins: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Return which tokens belong to a word whose first token is drawn, shape (rows, tokens), bool.

    Args:
        begins: which tokens are the first of a word, same shape, bool.
        drawn: which of these tokens are drawn, same shape, bool.
    """
    words = begins.cumsum(1)
    counts = torch.zeros(words.shape[0], words.shape[1] + 1, dtype=torch.long)
    return counts.scatter_add(1, words, drawn.long()).gather(1, words) > 0
