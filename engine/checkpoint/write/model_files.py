"""The files of a model: its weights in one or several files, its config and its extra state."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors

from ....events.errors import ArgumentError
from ..format.adapters import adapters_of, weights_beside
from ..format.codec import encode
from ..format.files import BESIDE_ADAPTERS, EXTRA_STATE, INDEX, MODEL, PICKLED_INDEX
from ..format.folder import CheckpointFolder
from ..format.tensor_file import can_write, write_tensors
from ..read.verify import weight_files

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}

Weights = dict[str, torch.Tensor]


def bytes_in(size: str | int) -> int:
    """Return a size in bytes. The size is a number, or text such as `5GB` (5 * 10**9) or `500MiB` (500 * 2**20).

    Raises:
        ArgumentError: if `size` has another form, or is less than 1 byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    number = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if number < 1:
        raise ArgumentError(
            f"max_shard_size={size!r} is not a size. Write a number of bytes, or text such as '5GB' or '500MB'."
        )
    return int(number)


def copies_of(weights: Mapping[str, Any], copy_of: Callable[[str, torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Return a state dict with copies of the values. All names of a tied tensor refer to one copy.

    Args:
        weights: the state dict.
        copy_of: a function that receives a name and a tensor, and returns a copy of the tensor.
    """
    firsts: dict[Any, torch.Tensor] = {}
    copied: dict[str, Any] = {}
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor):  # the extra state of a module
            copied[name] = copy.deepcopy(tensor)
            continue
        same = _identity(tensor) if tensor.numel() else name
        if same not in firsts:
            firsts[same] = copy_of(f"model/{name}", tensor)
        copied[name] = firsts[same]
    return copied


def clone_values(weights: dict[str, Any]) -> None:
    """Replace the values of a state dict by copies, one after the other. All names of a tied tensor refer to one copy.

    If only the state dict refers to a value, the memory of the value is freed when the copy replaces the value.
    """
    firsts: dict[Any, torch.Tensor] = {}
    for name in weights:
        if not isinstance(weights[name], torch.Tensor):
            weights[name] = copy.deepcopy(weights[name])
            continue
        same = _identity(weights[name]) if weights[name].numel() else name
        if same not in firsts:
            firsts[same] = weights[name].detach().clone()
        weights[name] = firsts[same]


def can_be_written_later(model: Any) -> bool:
    """Return whether a checkpoint can write a model from a copy of its weights while training continues."""
    if not hasattr(model, "save_pretrained"):
        return True
    parameters = inspect.signature(model.save_pretrained).parameters
    return "state_dict" in parameters


def write_model(model: Any, weights: Weights | None, folder: Path, max_shard_size: str | int) -> None:
    """Write a model into a folder with the method `save_pretrained` of the model.

    The function writes the weights itself in three cases:

    - The model has no such method.
    - The method raises NotImplementedError.
    - The method writes no weights that a run can load.

    Args:
        model: the model.
        weights: the state dict to write; None for the state dict of the model.
        folder: the folder. It is created if necessary.
        max_shard_size: the largest size of a weights file, in bytes or as text such as `5GB`. A larger tensor gets its
            own file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict() if weights is None else weights
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    _save_extra_state({name: value for name, value in state.items() if name not in tensors}, folder)
    if not hasattr(model, "save_pretrained"):
        save_weights(tensors, folder, bytes_in(max_shard_size))
        return
    takes = inspect.signature(model.save_pretrained).parameters
    several = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    own = weights is None and (len(tensors) == len(state) or "state_dict" not in takes)
    options: dict[str, Any] = {} if own else {"state_dict": tensors}
    if "max_shard_size" in takes or several:
        options["max_shard_size"] = max_shard_size
    try:
        model.save_pretrained(str(folder), **options)  # some libraries join the path with `+`
    except NotImplementedError:  # such as peft's PeftMixedModel
        save_weights(tensors, folder, bytes_in(max_shard_size))
        return
    if adapters_of(model):
        _save_beside(model, tensors, folder)
    if not any((folder / name).is_file() for name in (*weight_files(CheckpointFolder(folder)), PICKLED_INDEX)):
        # `save_pretrained` wrote no weights, or in a format of its own, from which a run could not resume.
        save_weights(tensors, folder, bytes_in(max_shard_size))


def _save_extra_state(extra: Mapping[str, Any], folder: Path) -> None:
    """Write `extra`, the values of a state dict that are not tensors. `Module.get_extra_state()` returned them."""
    (folder / EXTRA_STATE).unlink(missing_ok=True)
    if extra:
        tensors, metadata = encode(dict(extra), EXTRA_STATE)
        with open(folder / EXTRA_STATE, "wb") as file:
            write_tensors(file, tensors, metadata)


def _save_beside(model: Any, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write the unfrozen weights and the buffers of a model that are not in the files of its adapters."""
    beside = weights_beside(model, weights)
    (folder / BESIDE_ADAPTERS).unlink(missing_ok=True)
    if beside:
        own = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in beside.items()}
        save_file(own, folder / BESIDE_ADAPTERS, {"format": "pt"})


def save_weights(named: Mapping[str, torch.Tensor], folder: Path, max_bytes: int | None = None) -> None:
    """Write weights as `model.safetensors`, or as several files with an index. Write a tied tensor once.

    The other names of a tied tensor are in the metadata of the file, as `save_model` of safetensors writes them. Weight
    files of an earlier save in the folder are deleted, so that no program loads them instead of the new files.

    Args:
        named: the weights by name.
        folder: the folder. It is created if necessary.
        max_bytes: the largest size of a file; None for one file.
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
        # A view into a larger buffer, as sharding creates, would be written with the whole buffer.
        owns_buffer = tensor.untyped_storage().nbytes() == tensor.nbytes
        weights[name] = tensor.contiguous() if owns_buffer else tensor.clone().contiguous()
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


def save_file(weights: Weights, path: Path, metadata: dict[str, str]) -> None:
    """Write tensors as `safetensors.torch.save_file` does, with less processor time.

    The function writes a temporary file, and then renames this file to `path`. If `path` already exists, the existing
    file stays unchanged until the rename, because the tensors may be a memory map of the existing file.

    For tensors with an unsupported dtype, the function calls `safetensors.torch.save_file`.
    """
    if not all(can_write(tensor) for tensor in weights.values()):
        safetensors.save_file(weights, path, metadata)
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            write_tensors(file, weights, metadata)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _remove_others(folder: Path, written: set[str]) -> None:
    stem, suffix = MODEL.split(".")
    for path in (folder / INDEX, folder / MODEL, *folder.glob(f"{stem}-*-of-*.{suffix}")):
        if path.name not in written:
            path.unlink(missing_ok=True)


def _shards(weights: Weights, max_bytes: int | None) -> list[Weights]:
    """Divide weights, in order, into files of at most `max_bytes` bytes. None: one file.

    A tensor larger than `max_bytes` is alone in a file.
    """
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
