"""The encoding of nested values with tensors for one safetensors file.

Tensors are stored as tensors. Other values are stored as JSON in the metadata of the file.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....events.errors import CheckpointError
from ...distributed.memory_errors import lacks_memory
from .folder import CheckpointFolder
from .layout import arranged, stride_to_store
from .sharded import StoredTensor, as_tensor, has_sharded_tensors, is_split, open_tensors
from .subclasses import consists_of_tensors, put_together, taken_apart
from .tensor_cache import TensorCache

_TENSOR, _ARRAY, _TUPLE, _ITEMS = "__tensor__", "__array__", "__tuple__", "__items__"
_STRIDE = "stride"
"""The JSON key of strides, next to `_TENSOR`. The file has a contiguous copy of a tensor with other strides."""
_CLASS = "__class__"
"""The JSON key of the class of a tensor that consists of other tensors. Next to it, `parts` has the other tensors."""
_SKELETON = "trainbus_skeleton"


def encode(values: Any, name: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Encode nested dicts, lists, tuples, numbers, strings, arrays and tensors as tensors and metadata of a file.

    The returned tensors share memory with the tensors in `values`. Arrays are copied. The metadata has the strides of
    the tensors that are not contiguous.

    Args:
        values: the nested values to encode.
        name: the name of the values in errors.

    Raises:
        CheckpointError: for a value of another type, such as a sparse tensor, and for values that are nested too
            deeply. The message says where the value is in the nested values.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        skeleton = _encode(values, tensors, name)
    except RecursionError as error:
        raise CheckpointError(
            f"{name} is nested too deeply for a checkpoint, or contains itself. Return values that do not refer to "
            "the object that holds them."
        ) from error
    return tensors, {_SKELETON: json.dumps(skeleton)}


def load_values(
    path: Path, *, whole: bool = True, folder: CheckpointFolder | None = None, cache: TensorCache | None = None
) -> Any:
    """Read nested values from a file that contains the results of `encode`. Tensors are returned on the CPU.

    Args:
        path: the file. If it has sharded tensors, their shards are in other files of the same folder.
        whole: whether to read all tensors now. If False, the result has `sharded.StoredTensor` objects in place of
            tensors. Such an object reads any region of its tensor later.
        folder: the checkpoint that the file belongs to. Pass it to reuse a manifest that is already in memory. Default:
            a new object for the folder of the file, which reads the manifest from disk if necessary.
        cache: whole tensors that verification has read into memory. If the cache has the tensors of the file, the
            function returns them and reads nothing, even if `whole` is False.

    Raises:
        CheckpointError: if the file is damaged or of another format.
        FileNotFoundError: if the file does not exist.
    """
    tensors: dict[str, Any]
    cache = TensorCache() if cache is None else cache
    try:
        if path in cache or (whole and not has_sharded_tensors(path)):
            tensors, metadata = cache.take(path)
        else:
            stored, metadata = open_tensors(path, CheckpointFolder(path.parent) if folder is None else folder)
            tensors = {key: as_tensor(value) for key, value in stored.items()} if whole else dict(stored)
        return _decode(json.loads(metadata[_SKELETON]), tensors)
    except FileNotFoundError:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        raise CheckpointError(f"{path} cannot be read: {error}") from error


_LARGEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Kind of a numpy dtype -> item size, in bytes, of the largest torch dtype of this kind."""


def _encode(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            kind = "a quantized tensor" if value.is_quantized else f"a tensor of the layout {value.layout}"
            kind = "a tensor without values" if value.is_meta else kind
            raise CheckpointError(f"{where} is {kind}, which a checkpoint cannot hold. Use a dense tensor.")
        if consists_of_tensors(value) and not is_split(value):
            kind, parts, attributes = taken_apart(value, where)
            encoded = {name: _encode(part, tensors, f"{where}.{name}") for name, part in parts.items()}
            return {_CLASS: kind, "parts": encoded, "attributes": attributes}
        key = str(len(tensors))
        tensors[key] = value.detach()
        stride = stride_to_store(value)
        return {_TENSOR: key} if stride is None else {_TENSOR: key, _STRIDE: [*stride]}
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float, str)):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc" or value.dtype.itemsize > _LARGEST[value.dtype.kind]:
            raise CheckpointError(
                f"{where} is an array of {value.dtype}, which a checkpoint cannot hold. Use an array of numbers, or a "
                "list."
            )
        key, native = str(len(tensors)), value.astype(value.dtype.newbyteorder("="))
        # uint32 is stored as the int32 of the same bits. Format 3 and earlier store it as int64.
        tensors[key] = torch.from_numpy(native.astype(np.int32) if native.dtype == np.uint32 else native)
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
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold. "
        "Use numbers, strings, tensors and arrays, in dicts, lists and tuples."
    )


def _decode(value: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return _with_stride(tensors[value[_TENSOR]], value.get(_STRIDE))
    if _CLASS in value:
        parts = {name: as_tensor(_decode(part, tensors)) for name, part in value["parts"].items()}
        return put_together(value[_CLASS], parts, value["attributes"])
    if _ARRAY in value:
        return as_tensor(tensors[value[_ARRAY]]).numpy().astype(value["dtype"])
    if _TUPLE in value:
        return tuple(_decode(item, tensors) for item in value[_TUPLE])
    if _ITEMS in value:
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value[_ITEMS]}
    return {key: _decode(item, tensors) for key, item in value.items()}


def _with_stride(tensor: Any, stride: list[int] | None) -> Any:
    if stride is None:
        return tensor
    return replace(tensor, stride=tuple(stride)) if isinstance(tensor, StoredTensor) else arranged(tensor, stride)
