"""The error for a saved state that does not fit its object, such as the schedule of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....events.errors import CheckpointError, TrainbusError
from ...distributed.memory_errors import lacks_memory
from .pickled import reason_of


@contextmanager
def fitting(target: Any, path: Path) -> Iterator[None]:
    """Raise a `CheckpointError` if the `with` block cannot load a state of the file `path` into `target`.

    Raises:
        CheckpointError: replaces an error of the block. Errors of trainbus, and errors of a full memory, are not
            replaced.
    """
    try:
        yield
    except TrainbusError:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        kind = type(target).__name__
        raise CheckpointError(f"{path} does not fit the {kind} of this run: {reason_of(error)}") from error
