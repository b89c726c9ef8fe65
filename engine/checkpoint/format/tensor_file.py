"""Writing and reading tensors in the format of safetensors, piece by piece, so that they are hashed on the way.

The library itself writes to a path, or makes one copy of everything in memory; and what it reads lies in the file. The
format is 8 bytes with the length of the header, the header as JSON, and the tensors:
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
_NAME_OF = {getattr(torch, torchs): theirs for theirs, torchs in _NAMES.items()}
_ALIGNMENT = 8


class Sink(Protocol):
    """What is written to."""

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes, which stay as they are."""


def write_tensors(file: Sink, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors, on any device, that safetensors reads.

    Args:
        file: where to.
        tensors: by name.
        metadata: what else the header holds.

    Raises:
        CheckpointError: for a tensor of a type that the format does not have.
    """
    # The widest first: so each begins at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _NAME_OF:
            raise CheckpointError(f"A checkpoint cannot hold tensors of type {tensor.dtype}, as {name!r} is.")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAME_OF[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name in names:
        file.write(_bytes_of(tensors[name].detach().to("cpu").contiguous()))


def read_tensors(
    path: Path, seen: Callable[[bytes | memoryview], object] = len
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read a file of tensors; return them by name, on the host, and the metadata.

    Each has memory of its own: in the file they begin anywhere, and products may round otherwise by where one begins.

    Args:
        path: the file.
        seen: is given all bytes of the file in their order; they stay as they are.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, or of another format, or has tensors of a type that torch does not.
    """
    try:
        with safe_open(path, framework="pt") as checked:  # it refuses tensors that overlap, or are not in the file
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
                raise ValueError(f"{name!r} is of type {kind}, which is not read")
            tensor = torch.empty(shape, dtype=getattr(torch, _NAMES[kind]))
            data = _bytes_of(tensor)
            if file.readinto(data) != len(data):
                raise ValueError("it ends too early")
            seen(data)
            tensors[name] = tensor
    return tensors, metadata


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the host."""
    data: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return data
