"""Metrics of logits and of texts: perplexity, top-k accuracy and exact match."""

from __future__ import annotations

import math
import re
import string
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.nn import functional

from ....events.errors import ArgumentError
from .base import Bundled, Reads
from .classes import quotient


@dataclass
class Perplexity(Bundled):
    """The exponential of the mean negative log likelihood of the labels. All labels have the same weight."""

    reads: ClassVar[tuple[Reads, ...]] = (Reads.LOGITS,)
    smaller_is_better: ClassVar[bool] = True

    _total: float = field(default=0.0, init=False, repr=False)
    _labels: int = field(default=0, init=False, repr=False)

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        losses = functional.cross_entropy(predictions.float(), references.long(), reduction="none")
        self._total += float(losses.double().sum())
        self._labels += len(references)

    def compute(self) -> dict[str, Any]:
        try:
            return {"perplexity": math.exp(quotient(self._total, self._labels, math.nan))}
        except OverflowError:
            return {"perplexity": math.inf}


@dataclass
class TopKAccuracy(Bundled):
    """The fraction of labels that are among the k classes with the highest logits.

    The name of the result is `top_<k>_accuracy`, such as `top_5_accuracy`.
    """

    reads: ClassVar[tuple[Reads, ...]] = (Reads.LOGITS,)

    k: int = 5
    """Number of classes."""
    _correct: int = field(default=0, init=False, repr=False)
    _labels: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ArgumentError(f"k={self.k!r} is not a positive integer. Set `k` to the number of classes, such as 5.")

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        highest = torch.topk(predictions, min(self.k, predictions.shape[-1]), dim=-1).indices
        self._correct += int((highest == references.unsqueeze(-1)).any(dim=-1).sum())
        self._labels += len(references)

    def compute(self) -> dict[str, Any]:
        return {f"top_{self.k}_accuracy": quotient(self._correct, self._labels, math.nan)}


@dataclass
class ExactMatch(Bundled):
    """The fraction of texts that equal their reference."""

    reads: ClassVar[tuple[Reads, ...]] = (Reads.TEXT,)

    regexes_to_ignore: list[str] | None = None
    """Regular expressions. Matches are removed from both texts before all other options apply."""
    ignore_case: bool = False
    """Compare lower-case texts."""
    ignore_punctuation: bool = False
    """Remove the characters of `string.punctuation`."""
    ignore_numbers: bool = False
    """Remove digits."""
    _equal: int = field(default=0, init=False, repr=False)
    _texts: int = field(default=0, init=False, repr=False)

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        self._equal += sum(self._plain(one) == self._plain(other) for one, other in zip(predictions, references))
        self._texts += len(references)

    def _plain(self, text: str) -> str:
        for pattern in self.regexes_to_ignore or ():
            text = re.sub(pattern, "", text)
        text = text.lower() if self.ignore_case else text
        removed = (string.punctuation if self.ignore_punctuation else "") + (
            string.digits if self.ignore_numbers else ""
        )
        return text.translate(str.maketrans("", "", removed))

    def compute(self) -> dict[str, Any]:
        return {"exact_match": quotient(self._equal, self._texts, math.nan)}
