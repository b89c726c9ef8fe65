"""The bundled metrics by name."""

from __future__ import annotations

from .base import Bundled
from .classes import F1, Accuracy, MatthewsCorrelation, Precision, Recall
from .spans import Seqeval
from .tokens import ExactMatch, Perplexity, TopKAccuracy
from .values import MeanAbsoluteError, MeanSquaredError, RSquared

BUNDLED: dict[str, type[Bundled]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "precision": Precision,
    "recall": Recall,
    "matthews_correlation": MatthewsCorrelation,
    "top_k_accuracy": TopKAccuracy,
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "r_squared": RSquared,
    "perplexity": Perplexity,
    "exact_match": ExactMatch,
    "seqeval": Seqeval,
}
"""Name -> class.

The names come from the library `evaluate`, except `top_k_accuracy`, which that library does not have.
"""
