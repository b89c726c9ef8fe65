"""`StreamedMetrics`, the interface of metrics that an evaluation computes batch by batch.

The evaluation imports only this interface. A program that uses no `Metrics` therefore does not import the bundled
metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class StreamedMetrics(ABC):
    """Metrics that read each batch of an evaluation, so that no logits are kept. `Metrics` derives from this class."""

    @abstractmethod
    def begin(self) -> Callable[..., dict[str, Any]]:
        """Return a function that measures one evaluation.

        An evaluation calls the returned function for each batch as `function(prediction, compute_result=is_last)`. The
        function returns the metrics of all batches if `compute_result` is True, and an empty dict otherwise.
        """

    @property
    @abstractmethod
    def names_are_known(self) -> bool:
        """Whether one batch is enough to know the names of all values that the metrics return.

        If False, the run cannot check these names before the first step.
        """
