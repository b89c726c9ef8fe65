"""Values that a dataset shares with its workers, such as an epoch in shared memory."""

from __future__ import annotations

import ctypes
from multiprocessing.managers import BaseProxy
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import torch

from ...checkpoint.own_generators import DEPTH, ObjectSearch


def shares_values(dataset: Any) -> bool:
    """Return whether a dataset has a shared value. If one process changes a shared value, all processes see the change.

    Shared values are a tensor of one element after `share_memory_()`, as in a `datasets.IterableDataset`, and objects
    of `multiprocessing`: `Value`, `Array` and the objects of a manager.
    """
    search = ObjectSearch(_is_shared)
    search.visit("dataset", dataset, DEPTH)
    return bool(search.found)


def _is_shared(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and bool(value.is_shared())  # type: ignore[no-untyped-call]
    if isinstance(value, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)):
        return hasattr(value, "_wrapper")  # `multiprocessing` adds it to values in shared memory
    return isinstance(value, (SynchronizedBase, BaseProxy))
