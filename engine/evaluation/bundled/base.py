"""The interface of bundled metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar


class Reads(str, Enum):
    """The kinds of values that a metric can read from the outputs of a model."""

    ARGMAX = "argmax"
    """The class with the highest logit."""
    SIGMOID = "sigmoid"
    """0 or 1 for each logit: 1 if the probability of the logit is above a threshold."""
    LABELS = "labels"
    """The outputs themselves, which are class numbers."""
    LOGITS = "logits"
    """Logits of shape (labels, classes)."""
    VALUES = "values"
    """Numbers, for regression."""
    TEXT = "text"
    """Texts that a tokenizer decodes from token numbers."""


class Bundled(ABC):
    """Base class of the bundled metrics. A metric is a dataclass: its constructor parameters are the options."""

    reads: ClassVar[tuple[Reads, ...]]
    """The values that the metric supports as the argument `reads` of `Metrics`. The first is the default."""
    smaller_is_better: ClassVar[bool] = False
    """Whether a smaller value is better, as for an error."""
    needs_sequences: ClassVar[bool] = False
    """Whether the metric receives one list of label names per row. False: one array with all labels of a batch."""

    @property
    def names_vary(self) -> bool:
        """Whether the names of the results depend on the data, as with one result for each class in the data."""
        return False

    @abstractmethod
    def add_batch(self, *, predictions: Any, references: Any) -> None:
        """Update the metric with the predictions and labels (`references`) of one batch."""

    @abstractmethod
    def compute(self) -> dict[str, Any]:
        """Return the results of all batches by name. Each result is a number or a dict of numbers."""
