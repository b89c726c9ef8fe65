"""Fixtures of the parity suite: a frozen garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage_collector() -> Iterator[None]:
    """Exclude imported modules from garbage collection, which transformers' Trainer starts for half of its time."""
    import transformers

    assert transformers.Trainer  # transformers imports it lazily
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
