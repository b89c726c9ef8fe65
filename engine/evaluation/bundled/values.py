"""Metrics of numbers: mean squared and absolute error, and the coefficient of determination.

Definitions: https://scikit-learn.org/stable/modules/model_evaluation.html#regression-metrics.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ....events.errors import ArgumentError
from .base import Bundled, Reads

_MULTIOUTPUT = ("uniform_average", "raw_values")


@dataclass
class _Values(Bundled):
    """Base class of metrics of numbers of shape (rows,) or (rows, outputs). The metrics sum in float64."""

    reads: ClassVar[tuple[Reads, ...]] = (Reads.VALUES,)
    key: ClassVar[str]

    multioutput: str = "uniform_average"
    """`uniform_average` for the mean over the outputs, `raw_values` for one value per output."""
    _rows: int = field(default=0, init=False, repr=False)
    _sums: Any = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.multioutput not in _MULTIOUTPUT:
            raise ArgumentError(f"multioutput={self.multioutput!r} is unknown. Set one of: {', '.join(_MULTIOUTPUT)}.")

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        shape = (len(references), -1) if references.size else (0, 1)
        self._add(*(part.reshape(shape).astype(np.float64) for part in (predictions, references)))

    @abstractmethod
    def _add(self, predictions: Any, references: Any) -> None:
        """Add one batch to the sums. Both arrays have the shape (rows, outputs)."""

    @abstractmethod
    def _values(self) -> Any:
        """Return one value of the metric for each column of the predictions, shape (outputs,)."""

    def compute(self) -> dict[str, Any]:
        values = np.atleast_1d(self._values()) if self._rows else np.array([np.nan])
        if self.multioutput == "raw_values":
            return {self.key: dict(enumerate(values.tolist()))}
        return {self.key: float(values.mean())}


@dataclass
class MeanSquaredError(_Values):
    """The mean of the squared errors."""

    smaller_is_better: ClassVar[bool] = True
    key: ClassVar[str] = "mse"

    squared: bool = True
    """Whether to return the mean squared error. False returns the root of the mean squared error."""

    def _add(self, predictions: Any, references: Any) -> None:
        self._sums = self._sums + ((predictions - references) ** 2).sum(axis=0)
        self._rows += len(references)

    def _values(self) -> Any:
        return self._sums / self._rows if self.squared else np.sqrt(self._sums / self._rows)


@dataclass
class MeanAbsoluteError(_Values):
    """The mean of the absolute errors."""

    smaller_is_better: ClassVar[bool] = True
    key: ClassVar[str] = "mae"

    def _add(self, predictions: Any, references: Any) -> None:
        self._sums = self._sums + np.abs(predictions - references).sum(axis=0)
        self._rows += len(references)

    def _values(self) -> Any:
        return self._sums / self._rows


@dataclass
class RSquared(_Values):
    """The fraction of the variance of the references that the predictions explain. NaN for fewer than two rows.

    It is 1 for exact predictions, and 0 if each prediction is the mean of the references. If the references are
    constant, it is 1 for exact predictions, else 0.
    """

    key: ClassVar[str] = "r_squared"

    _means: Any = field(default=0.0, init=False, repr=False)
    _deviations: Any = field(default=0.0, init=False, repr=False)
    """Sum of the squared deviations of the references from their mean."""

    def _add(self, predictions: Any, references: Any) -> None:
        rows = len(references)
        if not rows:
            return
        means = references.mean(axis=0)
        # Chan, Golub and LeVeque (1983): sums of squares of two parts, without the cancellation of sum(x^2) - n*mean^2.
        total, apart = self._rows + rows, means - self._means
        own = ((references - means) ** 2).sum(axis=0)
        self._deviations = self._deviations + own + apart**2 * (self._rows * rows / total)
        self._means = self._means + apart * (rows / total)
        self._sums = self._sums + ((predictions - references) ** 2).sum(axis=0)
        self._rows = total

    def _values(self) -> Any:
        if self._rows < 2:
            return np.full(np.shape(self._sums), np.nan)
        constant = np.equal(self._deviations, 0)
        explained = 1 - self._sums / np.where(constant, 1, self._deviations)
        return np.where(constant, np.where(np.equal(self._sums, 0), 1.0, 0.0), explained)
