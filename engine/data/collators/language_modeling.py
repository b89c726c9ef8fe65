"""The collator of masked and causal language models. It draws the same random numbers as transformers' collator."""

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
from .padding import no_padding_token, pad_rows, round_up


@dataclass
class DataCollatorForLanguageModeling(CheckedKeywords):
    """Pads samples and makes their labels.

    If `mlm` is False, all tokens except padding are labels. If `mlm` is True, the collator draws tokens at random, and
    only the drawn tokens are labels. In the input, some drawn tokens become the mask token, some become a random token,
    and the others stay unchanged.
    """

    tokenizer: Any
    """A tokenizer with `pad`, `pad_token_id` and `padding_side`. `mlm` also needs `mask_token_id` and `__len__`. If
    samples have no `special_tokens_mask`, `mlm` needs `get_special_tokens_mask` too."""
    mlm: bool = True
    """Whether to train a masked language model. False makes the labels of a causal language model."""
    whole_word_mask: bool = False
    """Whether to mask all tokens of a word together. Samples then need an `offset_mapping`. `mask_replace_prob` is then
    1: a smaller value is replaced, with a warning."""
    mlm_probability: float | None = 0.15
    """Probability with which a token, or a word, is drawn. None is allowed only if `mlm` is False."""
    mask_replace_prob: float = 0.8
    """Probability with which a drawn token becomes the mask token."""
    random_replace_prob: float = 0.1
    """Probability with which a drawn token becomes a random token."""
    pad_to_multiple_of: int | None = None
    """Pad to a multiple of this number of tokens. None pads to the longest sample of the batch."""
    return_tensors: str = "pt"
    """Type of the result: 'pt' for torch tensors, 'np' for NumPy arrays."""
    seed: int | None = None
    """Seed of the collator's own generator. Worker n uses `seed + n`. None draws from torch's global generator."""

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
            A dict with `input_ids` and `labels` of shape (rows, tokens), and the other columns of the samples.

        Raises:
            DataError: if the samples need padding and the tokenizer has no padding token, or if `whole_word_mask` is
                True and the samples have no `offset_mapping`. For dicts that cannot be padded for another reason, the
                tokenizer raises its own error.
            ArgumentError: if `return_tensors` is neither 'pt' nor 'np'.
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
        """Pad lists of token ids on the tokenizer's `padding_side`, and return a tensor of shape (rows, tokens).

        Raises:
            DataError: if the lists need padding and the tokenizer has no padding token.
        """
        tensors = [row if isinstance(row, torch.Tensor) else torch.tensor(row, dtype=torch.long) for row in rows]
        width = round_up(max(map(len, tensors)), self.pad_to_multiple_of)
        if all(len(row) == width for row in tensors):
            return torch.stack(tensors)
        if self.tokenizer.pad_token_id is None:
            raise no_padding_token(self.tokenizer)
        joined = tensors[0].new_full((len(tensors), width), self.tokenizer.pad_token_id)
        for target, row in zip(joined, tensors):
            target[slice(len(row)) if self.tokenizer.padding_side == "right" else slice(width - len(row), width)] = row
        return joined

    def _masked(self, inputs: torch.Tensor, special: Any, offsets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw tokens, replace them, and return the inputs and their labels. Both have shape (rows, tokens).

        The label of a drawn token is the original token. All other labels are -100.

        Args:
            inputs: token ids, shape (rows, tokens). They are changed in place.
            special: 1 for each special token, such as a separator, else 0; shape (rows, tokens). Special tokens are
                never drawn. If `special` is None, the tokenizer finds the special tokens.
            offsets: for each token, the index of its first character in the text, and the index after its last
                character; shape (rows, tokens, 2). Only `whole_word_mask` needs the offsets.
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

        As in transformers, the random generator makes one number for every token, also for a token that cannot be
        selected.

        Args:
            probability: the probability with which a token is selected. It must not be None.
            of: True for the tokens that can be selected, shape (rows, tokens), bool.

        Returns:
            True for the selected tokens, shape (rows, tokens), bool.
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
    """Return True for each token that is the first of a word, shape (rows, tokens), bool.

    A token continues a word if the previous token is not special and no character is between the two in the text. The
    result is False for special tokens and for tokens that continue a word. It is True for all other tokens.

    Args:
        offsets: for each token, the index of its first character in the text, and the index after its last character;
            shape (rows, tokens, 2).
        special: True for special tokens, shape (rows, tokens), bool.
    """
    begins = ~special
    joins = offsets[:, 1:, 0] == offsets[:, :-1, 1]
    begins[:, 1:] &= ~joins | special[:, :-1]
    return begins


def _whole_words(begins: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Return True for each token of a word whose first token is drawn, shape (rows, tokens), bool.

    A special token counts as a part of the word before it. The caller removes special tokens from the result.

    Args:
        begins: True for the first token of each word, shape (rows, tokens), bool.
        drawn: True for each token that begins a word and is drawn, shape (rows, tokens), bool.
    """
    words = begins.cumsum(1)
    counts = torch.zeros(words.shape[0], words.shape[1] + 1, dtype=torch.long)
    return counts.scatter_add(1, words, drawn.long()).gather(1, words) > 0
