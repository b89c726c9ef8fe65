"""Reading and writing safetensors files piece by piece, so that the caller can hash each piece.

The format is 8 bytes with the length of the header, the header as JSON, then the tensors:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from ....events.errors import CheckpointError

_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}
_NAME_OF = {getattr(torch, dtype): name for name, dtype in _NAMES.items()}
_ALIGNMENT = 8
_PIECE = 1 << 20
"""Bytes that are written at a time. On ext4 and Linux 6.18, 40 MB took 10 ms of processor time in writes of 1 MiB, and
50 ms in writes of 4 MB. Probably, Linux searches for larger pages of the file cache in a larger write."""


class Sink(Protocol):
    """An object with a method `write` for bytes, such as an open file or a `HashedFile`."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write `data`. The sink may read `data` after this call, so the caller must not change `data`."""


def can_write(tensor: torch.Tensor) -> bool:
    """Return whether `write_tensors` can write a tensor: the tensor is dense and has a supported dtype."""
    return tensor.layout == torch.strided and tensor.dtype in _NAME_OF


def write_tensors(file: Sink, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors, from any device, as a safetensors file.

    Args:
        file: the destination.
        tensors: the tensors by name.
        metadata: the metadata of the header.

    Raises:
        CheckpointError: for a tensor with an unsupported dtype.
    """
    # Wide dtypes come first, so that each tensor begins at a multiple of its item size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _NAME_OF:
            raise CheckpointError(
                f"{name!r} is a tensor of dtype {tensor.dtype}, which a checkpoint cannot hold. Convert its dtype."
            )
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAME_OF[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name in names:
        data = _bytes_of(tensors[name].detach().to("cpu").contiguous())
        for start in range(0, len(data), _PIECE):
            file.write(data[start : start + _PIECE])


def read_tensors(
    path: Path, seen: Callable[[bytes | memoryview], object] = len
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read a safetensors file. Return its tensors by name, on the CPU, and its metadata.

    Each tensor has its own memory. Tensors are not mapped from the file, because tensors may have any alignment in the
    file, and the alignment can change how matrix products round.

    Args:
        path: the file.
        seen: a function that is called with each piece of the file, in order. A piece can share the memory of a
            returned tensor. `read_tensors` does not change a piece after the call.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is damaged, has another format, or has a tensor with an unsupported dtype.
    """
    try:
        with safe_open(path, framework="pt") as checked:  # `safe_open` refuses tensors that overlap or exceed the file
            metadata = checked.metadata() or {}
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    tensors = {}
    with open(path, "rb") as file:
        length = file.read(8)
        text = file.read(int.from_bytes(length, "little"))
        seen(length)
        seen(text)
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        for name in sorted(entries, key=lambda name: entries[name]["data_offsets"]):
            kind, shape = entries[name]["dtype"], entries[name]["shape"]
            if kind not in _NAMES:
                raise ValueError(f"{name!r} has the dtype {kind}, which is not supported")
            tensor = torch.empty(shape, dtype=getattr(torch, _NAMES[kind]))
            data = _bytes_of(tensor)
            if file.readinto(data) != len(data):
                raise ValueError("the file ends too early")
            seen(data)
            tensors[name] = tensor
    return tensors, metadata


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor as bytes, without a copy."""
    data: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return data
