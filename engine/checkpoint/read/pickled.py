"""Reading pickled files of other libraries. No code in the files runs.

The weights-only unpickler of torch reads the files. It builds tensors and plain values. If a file asks for a function
or class that is not allowed, reading raises a `CheckpointError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ....events.errors import CheckpointError
from ...distributed.memory_errors import lacks_memory

_CALLED = re.compile(r"(?:GLOBAL|function) `?(?P<name>[A-Za-z_][\w.]*)")


def load_plain(path: Path, allowed: Sequence[Any] = ()) -> Any:
    """Read a torch file of tensors, numbers and strings, in dicts, lists and tuples.

    Args:
        path: the file.
        allowed: further functions and classes that the pickle in the file may call.

    Raises:
        CheckpointError: if the file is damaged, or if its pickle names any other function or class. The message has
            this name. This function or class is not called.
        FileNotFoundError: if the file does not exist.
    """
    try:
        with torch.serialization.safe_globals([*allowed]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        called = _CALLED.search(str(error))
        if called is None:
            raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
        raise CheckpointError(
            f"{path} is not read: it would call {called['name']}, and a checkpoint must not call anything. "
            "No code of the file was run. Do not use the file unless you trust its source."
        ) from error


def reason_of(error: Exception) -> str:
    """Return the first line of an error of the unpickler, or the type of the error if the error has no text."""
    text = str(error)
    return text.rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0] or type(error).__name__


def load_pickled_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read pickled weights, such as `pytorch_model.bin`.

    Raises:
        CheckpointError: if the file cannot be read, or is not a dict from names to tensors.
    """
    state = load_plain(path)
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise CheckpointError(f"{path} has no weights: it must hold a `state_dict()`, tensors by name.")
    return dict(state)
