"""Values that a dataset shares with its workers, such as an epoch in shared memory."""

from __future__ import annotations

from ctypes import _SimpleCData
from multiprocessing.managers import BaseProxy
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import torch

_DEPTH = 5
"""The depth of the search: enough for a value in a list of a dataset that two other datasets wrap."""
_ITEMS = 64
"""A list or dict with more items is not searched, because it usually contains samples."""


def shares_values(dataset: Any) -> bool:
    """Return whether a dataset has a value in shared memory. All processes then see a change that one process makes.

    Such values are a tensor of one element after `share_memory_()`, as in a `datasets.IterableDataset`, and objects of
    `multiprocessing`: `Value`, `Array` and the objects of a manager.
    """
    return _shares(dataset, _DEPTH, set())


def _shares(value: Any, depth: int, seen: set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and bool(value.is_shared())  # type: ignore[no-untyped-call]
    if isinstance(value, (SynchronizedBase, BaseProxy, _SimpleCData)):
        return True
    if not depth or id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, dict):
        inner = [*value.values()] if len(value) <= _ITEMS else []
    elif isinstance(value, (list, tuple)):
        inner = [*value] if len(value) <= _ITEMS else []
    else:
        inner = [*getattr(value, "__dict__", {}).values()]
    return any(_shares(each, depth - 1, seen) for each in inner)
