"""Count the elements of weights. Weights of lazy modules may not have a shape yet."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parameter import is_lazy


def count_elements(weights: Iterable[torch.Tensor]) -> int:
    """Return the number of elements of all weights.

    A weight of a lazy module counts as 0 elements until the first batch gives the weight a shape. Until then, torch
    raises an error for `weight.numel()`.
    """
    return sum(weight.numel() for weight in weights if not is_lazy(weight))
