"""Metrics of labelled spans, such as names in a text. The results equal the package seqeval in its default mode."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .base import Bundled, Reads
from .classes import quotient


@dataclass
class Seqeval(Bundled):
    """Precision, recall and F1 of spans, overall and by type.

    A predicted span is correct if the references have a span with the same type, start and end.

    A label has a tag of the schemes IOB1, IOB2, IOE or IOBES, and a type. In `B-PER`, the tag is `B` and the type is
    `PER`. The label `O` is outside of all spans. As in conlleval, an `I-PER` without a `B-PER` starts a span. The
    results have the names of the module `seqeval` of the library `evaluate`: `overall_precision`, `overall_recall`,
    `overall_f1`, `overall_accuracy` (of labels), and a dict for each type.
    """

    reads: ClassVar[tuple[Reads, ...]] = (Reads.ARGMAX, Reads.LABELS)
    needs_sequences: ClassVar[bool] = True

    suffix: bool = False
    """Whether the tag is at the end of the label, as in `PER-B`."""
    zero_division: float = 0.0
    """The value of a quotient with the denominator 0."""
    _true: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _predicted: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _expected: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _correct: int = field(default=0, init=False, repr=False)
    _labels: int = field(default=0, init=False, repr=False)

    @property
    def names_vary(self) -> bool:
        return True

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        for predicted_labels, expected_labels in zip(predictions, references):
            predicted, expected = (set(spans(labels, self.suffix)) for labels in (predicted_labels, expected_labels))
            for counter, found in (
                (self._true, predicted & expected),
                (self._predicted, predicted),
                (self._expected, expected),
            ):
                counter.update(kind for kind, _, _ in found)
            self._correct += sum(map(str.__eq__, predicted_labels, expected_labels))
            self._labels += len(expected_labels)

    def compute(self) -> dict[str, Any]:
        kinds = sorted(set(self._predicted) | set(self._expected))
        by_kind = {kind: {**self._scores([kind]), "number": self._expected[kind]} for kind in kinds}
        overall = {f"overall_{name}": value for name, value in self._scores(kinds).items()}
        return {**by_kind, **overall, "overall_accuracy": quotient(self._correct, self._labels, math.nan)}

    def _scores(self, kinds: list[str]) -> dict[str, float]:
        counters = (self._true, self._predicted, self._expected)
        true, predicted, expected = (sum(counter[kind] for kind in kinds) for counter in counters)
        return {
            "precision": quotient(true, predicted, self.zero_division),
            "recall": quotient(true, expected, self.zero_division),
            "f1": quotient(2 * true, predicted + expected, self.zero_division),
        }


def spans(labels: list[str], suffix: bool = False) -> Iterator[tuple[str, int, int]]:
    """Yield the type, the first position and the last position of each span in a sequence of labels.

    Args:
        labels: the labels, such as `["B-PER", "I-PER", "O"]`.
        suffix: whether the tag is at the end of the label, as in `PER-B`, instead of at its start, as in `B-PER`.
    """
    former_tag, former_kind, first = "O", "", 0
    for position, label in enumerate([*labels, "O"]):
        tag, kind = _parts(label, suffix)
        other = kind != former_kind
        inside, was_inside = tag not in "O.", former_tag not in "O."
        if former_tag in "ES" or (former_tag in "BI" and tag in "BSO") or (was_inside and other):
            yield former_kind, first, position - 1
        if tag in "BS" or (former_tag in "ESO" and tag in "EI") or (inside and other):
            first = position
        former_tag, former_kind = tag, kind


def _parts(label: str, suffix: bool) -> tuple[str, str]:
    """Return the tag and the type of a label: `B` and `PER` for `B-PER`. A label without a type has the type `_`.

    `suffix` has the same meaning as in `spans`.
    """
    if suffix:
        return label[-1], label[:-1].rsplit("-", maxsplit=1)[0] or "_"
    return label[0], label[1:].split("-", maxsplit=1)[-1] or "_"
