"""Master weights: float32 copies of half-precision weights, which the optimizer updates."""

from __future__ import annotations

import torch

CHUNK = 2**24
"""About the number of elements that `copy_writes` compares at once. This limits the memory of the comparison."""


@torch.no_grad()
def copy_writes(master: torch.Tensor, weight: torch.Tensor) -> None:
    """Copy into the master weight the elements of a weight that the program has changed.

    An element is changed if it differs from the rounded element of the master weight. All other elements of the master
    weight keep their float32 values, which have more digits than the weight.

    Args:
        master: the master weight. The function changes it.
        weight: the weight, of the same shape. It may be on another device.
    """
    if master.dim() == 0:
        master, weight = master.unsqueeze(0), weight.unsqueeze(0)  # views, which have a dimension to split
    rows = max(1, CHUNK * len(master) // max(1, master.numel()))
    for to, source in zip(torch.split(master, rows), torch.split(weight, rows)):
        to.copy_(with_writes(to, source.to(to.device)))


def with_writes(master: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a copy of the master weight. Elements that the program changed have the value of the weight.

    The function `copy_writes` says which elements are changed.
    """
    return torch.where(master.to(weight.dtype) == weight, master, weight.to(master.dtype))
