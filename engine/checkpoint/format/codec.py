"""Nested values with tensors in them, as one safetensors file: the tensors as such, the rest as JSON in its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....events.errors import CheckpointError
from ..read.contents import Contents
from .sharded import as_tensor, stored_in, tells_of_split

_TENSOR, _ARRAY, _TUPLE, _ITEMS = "__tensor__", "__array__", "__tuple__", "__items__"
_SKELETON = "trainbus_skeleton"


def encode(values: Any, name: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return nested dicts, lists, tuples, numbers, strings, arrays and tensors as tensors and metadata of a file.

    The tensors are those that were given, and not copies.

    Args:
        values: the values.
        name: how to call them in an error.

    Raises:
        CheckpointError: for a value of another kind, naming where in the structure it is.
    """
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _encode(values, tensors, name)
    return tensors, {_SKELETON: json.dumps(skeleton)}


def load_values(path: Path, *, whole: bool = True, contents: Contents | None = None) -> Any:
    """Read what `encode` made of values; tensors come back on the host.

    Args:
        path: the file; what was split over processes is in others beside it.
        whole: read all tensors now; else they come as `sharded.Stored`, of which any part can be read.
        contents: where what is in the file is taken from, if it is kept there; it is read whole then.

    Raises:
        CheckpointError: if the file is damaged, or is of another kind.
    """
    tensors: dict[str, Any]
    kept = Contents() if contents is None else contents
    try:
        if path in kept or (whole and not tells_of_split(path)):
            tensors, metadata = kept.take(path)
        else:
            stored, metadata = stored_in(path)
            tensors = {key: as_tensor(value) for key, value in stored.items()} if whole else dict(stored)
        return _decode(json.loads(metadata[_SKELETON]), tensors)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _encode(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach()
        return {_TENSOR: key}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        key = str(len(tensors))
        tensors[key] = torch.from_numpy(value.astype(np.int64) if value.dtype == np.uint32 else value.copy())
        return {_ARRAY: key, "dtype": str(value.dtype)}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(item, tensors, f"{where}[{index}]") for index, item in enumerate(value)]}
    if isinstance(value, list):
        return [_encode(item, tensors, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: _encode(item, tensors, f"{where}.{key}") for key, item in value.items()}
        return {
            _ITEMS: [[_encode(k, tensors, where), _encode(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        }
    raise CheckpointError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: "
        "state is made of numbers, strings, tensors and arrays, in dicts, lists and tuples."
    )


def _decode(value: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _ARRAY in value:
        return as_tensor(tensors[value[_ARRAY]]).numpy().astype(value["dtype"])
    if _TUPLE in value:
        return tuple(_decode(item, tensors) for item in value[_TUPLE])
    if _ITEMS in value:
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value[_ITEMS]}
    return {key: _decode(item, tensors) for key, item in value.items()}
