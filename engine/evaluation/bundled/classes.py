"""Metrics of classes: accuracy, precision, recall, F1 and the Matthews correlation.

Definitions: https://scikit-learn.org/stable/modules/model_evaluation.html#classification-metrics. The results equal the
results of scikit-learn, which the library `evaluate` calls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ....events.argument_types import is_whole
from ....events.errors import ArgumentError
from .base import Bundled, Reads

_CLASSES = (Reads.ARGMAX, Reads.SIGMOID, Reads.LABELS)
_AVERAGES = ("binary", "micro", "macro", "weighted", "samples", None)


@dataclass
class Accuracy(Bundled):
    """The fraction of correct predictions.

    With several labels per row, a row counts as correct if all its labels are correct.
    """

    reads: ClassVar[tuple[Reads, ...]] = _CLASSES

    normalize: bool = True
    """Whether to return the fraction of correct predictions. False returns their number."""
    _correct: int = field(default=0, init=False, repr=False)
    _rows: int = field(default=0, init=False, repr=False)

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        equal = predictions == references
        self._correct += int(equal.sum() if equal.ndim == 1 else equal.all(axis=1).sum())
        self._rows += len(references)

    def compute(self) -> dict[str, Any]:
        return {"accuracy": quotient(self._correct, self._rows, math.nan) if self.normalize else float(self._correct)}


@dataclass
class _Counts(Bundled):
    """Base class of metrics that count predictions, references and correct predictions of each class.

    References are the labels. If rows have several labels, each column is a class.
    """

    reads: ClassVar[tuple[Reads, ...]] = _CLASSES

    _true: Counter[Any] = field(default_factory=Counter, init=False, repr=False)
    """Class -> number of correct predictions of this class."""
    _predicted: Counter[Any] = field(default_factory=Counter, init=False, repr=False)
    """Class -> number of predictions of this class."""
    _expected: Counter[Any] = field(default_factory=Counter, init=False, repr=False)
    """Class -> number of references of this class."""
    _several: bool = field(default=False, init=False, repr=False)
    """Whether rows have several labels."""

    @property
    def classes(self) -> set[Any]:
        """The classes that occur in predictions or references."""
        return set(self._predicted) | set(self._expected)

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        self._several = references.ndim > 1
        if self._several:
            columns = range(references.shape[1])
            for counter, marks in self._marks(predictions, references):
                counter.update(dict(zip(columns, marks.sum(axis=0).tolist())))
            return
        for counter, labels in (
            (self._true, references[predictions == references]),
            (self._predicted, predictions),
            (self._expected, references),
        ):
            counter.update(dict(zip(*(part.tolist() for part in np.unique(labels, return_counts=True)))))

    def _marks(self, predictions: Any, references: Any) -> list[tuple[Counter[Any], Any]]:
        both = [(self._true, predictions * references), (self._predicted, predictions), (self._expected, references)]
        return [(counter, marks.astype(np.int64)) for counter, marks in both]


@dataclass
class _Scores(_Counts):
    """Base class of precision, recall and F1."""

    key: ClassVar[str]

    average: str | None = "binary"
    """`binary`, `micro`, `macro`, `weighted`, `samples`, or None for one value per class, as in scikit-learn."""
    pos_label: int = 1
    """The class that `binary` measures."""
    labels: list[int] | None = None
    """The classes to measure. None: the classes that occur in predictions or references. `binary` ignores it."""
    zero_division: float = 0.0
    """The value of a quotient with the denominator 0."""
    _row_scores: float = field(default=0.0, init=False, repr=False)
    _rows: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.average not in _AVERAGES:
            raise ArgumentError(f"average={self.average!r} is unknown. Set one of: {', '.join(map(repr, _AVERAGES))}.")
        if self.labels is not None:
            self.labels = _class_numbers(self.labels)

    @property
    def names_vary(self) -> bool:
        return self.average is None and self.labels is None

    def score(self, true: float, predicted: float, expected: float) -> float:
        """Return the score of a class.

        Args:
            true: the number of correct predictions of the class.
            predicted: the number of predictions of the class.
            expected: the number of references of the class.
        """
        raise NotImplementedError

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        super().add_batch(predictions=predictions, references=references)
        if self.average == "samples" and self._several:
            kept = slice(None) if self.labels is None else self.labels
            true, predicted, expected = (
                marks[:, kept].sum(axis=1).tolist() for _, marks in self._marks(predictions, references)
            )
            self._row_scores += sum(map(self.score, true, predicted, expected))
            self._rows += len(references)

    def compute(self) -> dict[str, Any]:
        labels = self._labels()
        scores = {label: self._score_of([label]) for label in labels}
        if self.average is None:
            return {self.key: scores}
        if self.average == "samples":
            return {self.key: quotient(self._row_scores, self._rows, math.nan)}
        if self.average in ("micro", "binary"):
            return {self.key: self._score_of(labels)}
        weights = [self._expected[label] if self.average == "weighted" else 1 for label in labels]
        return {self.key: _mean([scores[label] for label in labels], weights)}

    def _score_of(self, labels: list[Any]) -> float:
        counters = (self._true, self._predicted, self._expected)
        return self.score(*(sum(counter[label] for label in labels) for counter in counters))

    def _labels(self) -> list[Any]:
        present = sorted(self.classes)
        if self.average == "samples" and not self._several:
            raise ArgumentError("average='samples' needs several labels per row. Set average='macro' or 'micro'.")
        if self.average != "binary":
            return present if self.labels is None else list(self.labels)
        if self._several or len(present) > 2:
            found = f"{len(present)} labels per row" if self._several else f"the classes {_shown(present)}"
            raise ArgumentError(
                f"{self.key!r} has average='binary', which measures one of two classes, and found {found}. Set "
                "average='macro', 'micro' or 'weighted', or None for one value per class."
            )
        if self.pos_label not in present and len(present) == 2:
            raise ArgumentError(
                f"{self.key!r} measures the class pos_label={self.pos_label}, and found only {_shown(present)}. Set "
                "`pos_label` to one of them."
            )
        return [self.pos_label]


@dataclass
class Precision(_Scores):
    """The number of correct predictions of a class, divided by the number of all predictions of the class."""

    key: ClassVar[str] = "precision"

    def score(self, true: float, predicted: float, expected: float) -> float:
        return quotient(true, predicted, self.zero_division)


@dataclass
class Recall(_Scores):
    """The number of correct predictions of a class, divided by the number of references of the class."""

    key: ClassVar[str] = "recall"

    def score(self, true: float, predicted: float, expected: float) -> float:
        return quotient(true, expected, self.zero_division)


@dataclass
class F1(_Scores):
    """The harmonic mean of precision and recall."""

    key: ClassVar[str] = "f1"

    def score(self, true: float, predicted: float, expected: float) -> float:
        return quotient(2 * true, predicted + expected, self.zero_division)


@dataclass
class MatthewsCorrelation(_Counts):
    """The correlation of predictions and references, from -1 to 1.

    It is 0 if all predictions, or all references, are of one class.
    """

    def compute(self) -> dict[str, Any]:
        if self._several:
            raise ArgumentError("'matthews_correlation' needs one label per row. Measure 'f1' or 'accuracy' instead.")
        rows = sum(self._expected.values())
        expected = sum(count * count for count in self._expected.values())
        predicted = sum(count * count for count in self._predicted.values())
        both = sum(count * self._predicted[label] for label, count in self._expected.items())
        covariance = sum(self._true.values()) * rows - both
        scale = math.sqrt((rows * rows - predicted) * (rows * rows - expected))
        return {"matthews_correlation": quotient(covariance, scale, 0.0)}


def _class_numbers(labels: Any) -> list[int]:
    """Return the option `labels` as a list of integers.

    Raises:
        ArgumentError: if a label is not a class number. No prediction would equal it, so its score would be 0.
    """
    listed = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, (str, Mapping)) else []
    if not listed or not all(map(is_whole, listed)):
        raise ArgumentError(
            f"labels={labels!r} is not a list of class numbers, such as labels=[1, 2]. The names of classes belong in "
            "`label_names`."
        )
    return [int(label) for label in listed]


def quotient(dividend: float, divisor: float, otherwise: float) -> float:
    """Divide two numbers. Return `otherwise` if the divisor is 0."""
    return dividend / divisor if divisor else float(otherwise)


def _mean(values: list[float], weights: list[int]) -> float:
    """Return the weighted mean of the values that are not NaN; NaN if all are NaN.

    If the weights of these values are all 0, return the mean without weights.
    """
    kept = [(value, weight) for value, weight in zip(values, weights) if not math.isnan(value)]
    total = sum(weight for _, weight in kept)
    if not total:
        return math.fsum(value for value, _ in kept) / len(kept) if kept else math.nan
    return math.fsum(value * weight for value, weight in kept) / total


def _shown(labels: list[Any]) -> str:
    return f"{', '.join(map(str, labels[:5]))}{', ...' if len(labels) > 5 else ''}"
