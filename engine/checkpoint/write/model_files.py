"""The model's own files: its weights, whole or in shards, with its config and tokenizer."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ....events.errors import ArgumentError
from ..format.files import MODEL
from ..read.verify import INDEX

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}

Weights = dict[str, torch.Tensor]


def bytes_in(size: str | int) -> int:
    """Return the bytes of a size: a number of them, or text as `5GB` (10**9 each) or `500MiB` (2**20 each).

    Raises:
        ArgumentError: if it is none, or not above 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    number = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if number < 1:
        raise ArgumentError(f"`max_shard_size` is {size!r}; write bytes, or a size as '5GB' or '500MB'.")
    return int(number)


def copies_of(weights: Mapping[str, torch.Tensor], copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Weights:
    """Copy weights, each by its name; those that are one tensor under several names stay so."""
    firsts: dict[Any, torch.Tensor] = {}
    copied = {}
    for name, tensor in weights.items():
        same = _identity(tensor) if tensor.numel() else name
        if same not in firsts:
            firsts[same] = copy(f"model/{name}", tensor)
        copied[name] = firsts[same]
    return copied


def can_be_written_later(model: Any) -> bool:
    """Say whether a model's files can be written from a copy of its weights, while the model itself goes on."""
    if not hasattr(model, "save_pretrained"):
        return True
    parameters = inspect.signature(model.save_pretrained).parameters
    return "state_dict" in parameters


def write_model(model: Any, weights: Weights | None, folder: Path, max_shard_size: str | int) -> None:
    """Write a model into a folder, by its own `save_pretrained` where it has one, else its weights alone.

    Args:
        model: says how it is written.
        weights: what is written; None for what the model has now.
        folder: where to.
        max_shard_size: how large a file of weights may get, unless a single tensor is larger.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not hasattr(model, "save_pretrained"):
        save_weights(model.state_dict() if weights is None else weights, folder, bytes_in(max_shard_size))
        return
    takes = inspect.signature(model.save_pretrained).parameters
    several = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    options: dict[str, Any] = {} if weights is None else {"state_dict": weights}
    if "max_shard_size" in takes or several:
        options["max_shard_size"] = max_shard_size
    model.save_pretrained(folder, **options)


def save_weights(named: Mapping[str, torch.Tensor], folder: Path, max_bytes: int | None = None) -> None:
    """Write weights as `model.safetensors`, or as shards with an index; a tensor with several names is written once.

    The other names stand in the file's metadata, as safetensors' own `save_model` writes them. What an earlier saving
    left in the folder, in another number of files, is removed: it would be read in place of this.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first_of: dict[Any, str] = {}
    weights: Weights = {}
    metadata = {"format": "pt"}
    for name, tensor in named.items():
        first = first_of.setdefault(_identity(tensor), name)
        if first != name and tensor.numel():
            metadata[name] = first
            continue
        # A view into a larger buffer, as sharding makes them, would drag the whole buffer along.
        alone = tensor.untyped_storage().nbytes() == tensor.nbytes
        weights[name] = tensor.contiguous() if alone else tensor.clone().contiguous()
    shards = _shards(weights, max_bytes)
    if len(shards) == 1:
        save_file(weights, folder / MODEL, metadata)
        _remove_others(folder, {MODEL})
        return
    stem, suffix = MODEL.split(".")
    files = [f"{stem}-{number:05}-of-{len(shards):05}.{suffix}" for number in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards):
        save_file(shard, folder / file, metadata)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())},
        "weight_map": {name: file for file, shard in zip(files, shards) for name in shard},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    _remove_others(folder, {INDEX, *files})


def _remove_others(folder: Path, written: set[str]) -> None:
    stem, suffix = MODEL.split(".")
    for path in (folder / INDEX, folder / MODEL, *folder.glob(f"{stem}-*-of-*.{suffix}")):
        if path.name not in written:
            path.unlink(missing_ok=True)


def _shards(weights: Weights, max_bytes: int | None) -> list[Weights]:
    """Deal out weights, in their order, to parts of at most so many bytes; a larger tensor has one of its own."""
    shards: list[Weights] = [{}]
    size = 0
    for name, tensor in weights.items():
        if max_bytes is not None and shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
