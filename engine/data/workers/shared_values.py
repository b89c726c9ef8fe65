"""Values that a dataset shares with its workers, such as an epoch in shared memory."""

from __future__ import annotations

from ctypes import _SimpleCData
from multiprocessing.managers import BaseProxy
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import torch

_DEPTH = 5
"""The depth of the search. It reaches a value of a dataset that two other datasets wrap, in a list or dict."""
_ITEMS = 64
"""The most items of a list or dict that are searched. Longer ones usually hold samples."""


def shares_values(dataset: Any) -> bool:
    """Return whether a dataset has a value in shared memory, so that a change in one process changes it in all.

    Such values are a tensor of one element after `share_memory_()`, as in a `datasets.IterableDataset`, and the values
    of `multiprocessing`: `Value`, `Array` and those of a manager.
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
