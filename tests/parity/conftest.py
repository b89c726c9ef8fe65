"""What the tests of parity share: the toys of the engine's tests, and a garbage collector that has little to do."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # where the toys are, whichever tests are run


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> Iterator[None]:
    """Keep the garbage collector from what is imported: their trainer calls it, for half the time of a run."""
    import transformers

    assert transformers.Trainer  # which is imported when it is asked for
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
