"""Writing tensors in the format of safetensors, piece by piece, so that they are hashed on the way and never copied.

The library itself writes to a path, or makes one copy of everything in memory. The format is 8 bytes with the length of
the header, the header as JSON, and the tensors: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from ...events.errors import CheckpointError
from .commit import HashedFile

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


def write_tensors(file: HashedFile, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
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
        plain = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        file.write(plain.view(torch.uint8).numpy().data)
