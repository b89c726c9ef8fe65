"""The collator of language models, masked and causal, with the random draws of transformers' collator of this name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ....events.errors import DataError
from ...arguments._base import refusal
from .default import only_torch
from .padding import IGNORED, pad_rows, round_up


@dataclass
class DataCollatorForLanguageModeling:
    """Pads rows and makes their labels: the tokens themselves, or with `mlm` those among them that are masked.

    Of the tokens drawn for masking, some become the mask token, some a random one, and the rest stay as they are.
    """

    tokenizer: Any
    """Pads the rows; has `pad_token_id`, `padding_side`, and for `mlm` also `mask_token_id`, a length, and
    `get_special_tokens_mask` for rows without a `special_tokens_mask`."""
    mlm: bool = True
    """Whether tokens are masked, and only those are labels; else all are, except padding."""
    whole_word_mask: bool = False
    """Whether all tokens of a word are masked together; the rows then need an `offset_mapping`."""
    mlm_probability: float | None = 0.15
    """The share of tokens, or words, that is drawn for masking."""
    mask_replace_prob: float = 0.8
    """The share of those that become the mask token."""
    random_replace_prob: float = 0.1
    """The share of those that become a random token."""
    pad_to_multiple_of: int | None = None
    """Pad on to a multiple of so many tokens."""
    return_tensors: str = "pt"
    """'pt', torch's tensors; there are no others here."""
    seed: int | None = None
    """Of a generator of its own, in each worker another; None draws from torch's global one."""

    def __post_init__(self) -> None:
        only_torch(self.return_tensors)
        if problems := [*self._problems()]:
            raise refusal(problems)
        self.generator: torch.Generator | None = None
        if self.whole_word_mask and self.mask_replace_prob < 1:
            warnings.warn(
                "Words that are masked whole are all replaced by mask tokens, so `mask_replace_prob` is taken to be 1 "
                "and `random_replace_prob` 0.",
                UserWarning,
                stacklevel=3,
            )
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """Return the batch of `features`: dicts as the tokenizer makes them, or plain lists of token ids.

        Raises:
            DataError: if rows must be padded and the tokenizer has no padding token.
        """
        only_torch(self.return_tensors if return_tensors is None else return_tensors)
        if isinstance(features[0], Mapping):
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
                labels[labels == self.tokenizer.pad_token_id] = IGNORED
            batch["labels"] = labels
        return batch

    def _problems(self) -> Iterator[str]:
        if self.mlm and getattr(self.tokenizer, "mask_token_id", None) is None:
            yield "The tokenizer has no mask token, which `mlm` needs; give `mlm=False` to train a causal model."
        if self.mlm and not (self.mlm_probability is not None and 0 <= self.mlm_probability <= 1):
            yield f"`mlm_probability` is {self.mlm_probability!r}; give a share between 0 and 1."
        if self.whole_word_mask and not self.mlm:
            yield "`whole_word_mask` masks words, and `mlm` is False; give `mlm=True`."
        for name in ("mask_replace_prob", "random_replace_prob"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"`{name}` is {getattr(self, name)!r}; give a share between 0 and 1."
        if self.mask_replace_prob + self.random_replace_prob > 1:
            yield (
                f"`mask_replace_prob={self.mask_replace_prob}` and `random_replace_prob={self.random_replace_prob}` "
                "are more than 1 together; they are shares of the same tokens."
            )

    def _joined(self, rows: list[Any]) -> torch.Tensor:
        """Return lists of token ids as one tensor of shape (rows, tokens), padded on the tokenizer's side."""
        tensors = [row if isinstance(row, torch.Tensor) else torch.tensor(row, dtype=torch.long) for row in rows]
        width = round_up(max(map(len, tensors)), self.pad_to_multiple_of)
        if all(len(row) == width for row in tensors):
            return torch.stack(tensors)
        if self.tokenizer.pad_token_id is None:
            raise DataError(
                f"The rows must be padded to {width} tokens, and the tokenizer ({type(self.tokenizer).__name__}) has "
                "no padding token: set its `pad_token`, or cut the rows to one length."
            )
        joined = tensors[0].new_full((len(tensors), width), self.tokenizer.pad_token_id)
        for place, row in zip(joined, tensors):
            place[slice(len(row)) if self.tokenizer.padding_side == "right" else slice(width - len(row), width)] = row
        return joined

    def _masked(self, inputs: torch.Tensor, special: Any, offsets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs with masked tokens in them, and labels that say what those were; both (rows, tokens)."""
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
        labels = inputs.masked_fill(~drawn, IGNORED)
        masked = drawn & self._draw(self.mask_replace_prob, torch.ones_like(drawn))
        inputs[masked] = self.tokenizer.mask_token_id
        if self.mask_replace_prob != 1 and self.random_replace_prob != 0:
            share = self.random_replace_prob / (1 - self.mask_replace_prob)
            scrambled = self._draw(share, torch.ones_like(drawn)) & drawn & ~masked
            random = torch.randint(len(self.tokenizer), inputs.shape, dtype=torch.long, generator=self.generator)
            inputs[scrambled] = random[scrambled].to(inputs.dtype)
        return inputs, labels

    def _draw(self, share: float | None, of: torch.Tensor) -> torch.Tensor:
        """Return which tokens a share is drawn of; those that do not stand for drawing cost a random number too."""
        assert share is not None
        shares = torch.full(of.shape, float(share)).masked_fill(~of, 0.0)
        return torch.bernoulli(shares, generator=self.generator).bool()

    def _checked(self, offsets: Any) -> torch.Tensor:
        if offsets is None:
            raise DataError(
                "`whole_word_mask` finds words by where their tokens are in the text, and the rows have no "
                "`offset_mapping`: tokenize with `return_offsets_mapping=True`, and keep the column."
            )
        return torch.as_tensor(offsets)


def _word_begins(offsets: torch.Tensor, special: torch.Tensor) -> torch.Tensor:
    """Return which tokens are the first of a word: (rows, tokens), True or False.

    Args:
        offsets: first and last character of each token in the text, (rows, tokens, 2).
        special: which tokens are special, (rows, tokens).
    """
    begins = ~special
    joins = offsets[:, 1:, 0] == offsets[:, :-1, 1]
    begins[:, 1:] &= ~joins | special[:, :-1]
    return begins


def _whole_words(begins: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Return which tokens follow the drawn beginning of a word, or are it."""
    words = begins.cumsum(1)
    counts = torch.zeros(words.shape[0], words.shape[1] + 1, dtype=torch.long)
    return counts.scatter_add(1, words, drawn.long()).gather(1, words) > 0
