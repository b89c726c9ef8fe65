"""Master weights: float32 copies of half-precision weights, which the optimizer updates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

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
        source = source.to(to.device)
        # On a GPU, the test would wait for the device.
        if to.device.type != "cpu" or not _have_same_bytes(to.to(source.dtype), source):
            to.copy_(with_writes(to, source))


def with_writes(master: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a copy of the master weight. Elements that the program changed have the value of the weight.

    The function `copy_writes` says which elements are changed.
    """
    return torch.where(master.to(weight.dtype) == weight, master, weight.to(master.dtype))


def _have_same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of the same shape and dtype are equal.

    Two NaN values may count as equal or as different. This depends on the size and the dtype.
    """
    if _fits_large_integers(one) and _fits_large_integers(other):
        # torch compares few large integers faster than many elements of half precision.
        one, other = one.view(-1).view(torch.int64), other.view(-1).view(torch.int64)
    return torch.equal(one, other)


def _fits_large_integers(tensor: torch.Tensor) -> bool:
    start = tensor.storage_offset() * tensor.element_size()
    return tensor.is_contiguous() and tensor.nbytes % 8 == 0 and start % 8 == 0


class KnownWeights:
    """The XXH3 hashes of weights after the optimizer updated them, to find the weights that other code changed.

    A hash costs much less than a comparison with the master weight. A hash also finds a change of `weight.data`, which
    the version counter of torch does not count. There is no hash without the package xxhash, and no hash of a weight
    that is not contiguous or not on the CPU. A weight without a hash counts as changed.
    """

    def __init__(self) -> None:
        """Create the object without hashes."""
        self._hashes: dict[str, int] = {}
        self._digest: Callable[[Any], int] | None = None
        with suppress(ImportError):
            self._digest = import_module("xxhash").xxh3_64_intdigest

    def note(self, name: str, weight: torch.Tensor) -> None:
        """Store the hash of a weight that equals its rounded master weight."""
        found = self._hash(weight)
        if found is not None:
            self._hashes[name] = found

    def may_differ(self, name: str, weight: torch.Tensor) -> bool:
        """Return whether a weight may have changed since the last call of `note` with this name."""
        return name not in self._hashes or self._hashes[name] != self._hash(weight)

    def forget(self) -> None:
        """Delete all hashes. Call this method after a change of master weights."""
        self._hashes.clear()

    def _hash(self, weight: torch.Tensor) -> int | None:
        if self._digest is None or weight.device.type != "cpu" or not weight.is_contiguous():
            return None
        return self._digest(weight.detach().view(-1).view(torch.uint8).numpy())
