"""Fixtures of the parity suite: the helpers of the engine's tests, and a frozen garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # for `engine_toys`, whichever tests are selected


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage_collector() -> Iterator[None]:
    """Exclude imported modules from garbage collection, which transformers' Trainer starts for half of its time."""
    import transformers

    assert transformers.Trainer  # transformers imports it lazily
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
