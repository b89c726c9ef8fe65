"""Reading the weights of a checkpoint and loading them into a model."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ....events.errors import CheckpointError
from ...distributed.memory_errors import lacks_memory
from ...seams import LoadModel, load_model
from ..format.adapters import DEFAULT
from ..format.codec import load_values
from ..format.files import ADAPTER, BESIDE_ADAPTERS, EXTRA_STATE, PICKLED_ADAPTER
from ..format.folder import CheckpointFolder
from ..format.sharded import fitted, is_lazy, is_split, open_tensors
from .adapters import load_adapters, read_adapters, read_beside
from .pickled import load_pickled_weights
from .renamed import renamed
from .verify import index_name, link_target_outside, weight_files

_SHOWN = 20
"""The most names of weights that an error lists."""


def read_weights(folder: CheckpointFolder, like: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """Read all weights of a checkpoint.

    Args:
        folder: the checkpoint.
        like: the state dict of the model. For its sharded tensors, return only the shards of this rank. None: return
            whole tensors.

    Returns:
        The weights by name. If `like` has no sharded tensor, the weights are on the CPU, and all names of a tied weight
        refer to one tensor. The key of an adapter weight is the name in the adapter file. If the adapter is not
        `default`, the key starts with `<adapter>/`.

    Raises:
        CheckpointError: if the checkpoint has no weights, or if they cannot be read.
    """
    if holds_adapters(folder):
        return {
            key if name == DEFAULT else f"{name}/{key}": value
            for name, entries in read_adapters(folder).items()
            for key, value in entries.items()
        } | {**read_beside(folder), **_extra_state(folder)}
    like = {} if like is None else like
    sharded = any(map(is_split, like.values()))
    state: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for path in _weight_paths(folder):
        if path.suffix == ".bin":
            state.update(load_pickled_weights(path))
            continue
        try:
            if sharded:
                stored, metadata = open_tensors(path, folder)
                state.update(stored)
                aliases.update(metadata)
                continue
            with safe_open(path, framework="pt") as file:
                state.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - not a dict
                aliases.update(file.metadata() or {})
        except (OSError, SafetensorError) as error:
            if lacks_memory(error):
                raise
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    state.update({name: state[first] for name, first in aliases.items() if first in state})
    if sharded:
        state = {name: fitted(value, like.get(name)) for name, value in state.items()}
    return state | _extra_state(folder)


def load_weights(model: nn.Module, folder: CheckpointFolder, load: LoadModel = load_model) -> None:
    """Load the weights of a checkpoint into a model, strictly. All ranks must call this function.

    Args:
        model: the model to load into.
        folder: the checkpoint.
        load: a function of a model and a state dict that loads the weights. It returns the missing and the unexpected
            names. The seam `load_model` is such a function.

    Raises:
        CheckpointError: if there are no weights, or they do not fit. The message gives the names.
    """
    _give_own_memory(model)
    if holds_adapters(folder):
        try:
            problem = load_adapters(model, folder, load)
        except RuntimeError as error:
            if lacks_memory(error):
                raise
            problem = str(error)
        if problem:
            raise CheckpointError(f"The adapters in {folder.path} do not fit {type(model).__name__}: {problem}")
        return
    # If the model is sharded, each rank reads its shards only.
    state = read_weights(folder, model.state_dict() if load is load_model else None)
    state = renamed(model, folder, state)
    try:
        missing, unexpected = load(model, state)
        problem = _misfit(set(missing) - _tied(model, state), unexpected)
    except RuntimeError as error:
        if lacks_memory(error):
            raise
        problem = str(error)
    if problem:
        raise CheckpointError(f"The weights in {folder.path} do not fit {type(model).__name__}: {problem}")


def holds_adapters(folder: CheckpointFolder) -> bool:
    """Return whether all weight files of a checkpoint are files of adapters.

    If the function `_weight_paths` raises a `CheckpointError`, return False. Example: a weight file is missing.
    """
    try:
        names = [path.name for path in _weight_paths(folder)]
    except CheckpointError:  # reading the weights raises it again
        return False
    return bool(names) and all(name in (ADAPTER, PICKLED_ADAPTER) for name in names)


def _weight_paths(folder: CheckpointFolder) -> list[Path]:
    try:
        index = folder.path / index_name(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{folder.path} cannot be read: {error}") from error
    try:
        paths = [folder.path / name for name in weight_files(folder)]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} cannot be read: {error}") from error
    for path in paths:
        name = path.relative_to(folder.path).as_posix()
        _refuse_link(folder, name)
        if not folder.has(name):
            raise CheckpointError(f"{folder.path} has no weights: it has no {name}. Use a complete checkpoint.")
    for name in filter(folder.has, (BESIDE_ADAPTERS, EXTRA_STATE)):
        _refuse_link(folder, name)
    return paths


def _refuse_link(folder: CheckpointFolder, name: str) -> None:
    """Raise a `CheckpointError` if a file is a link to a target outside of the checkpoint."""
    if target := link_target_outside(folder.path, name):
        raise CheckpointError(
            f"{folder.path / name} is a link to {target}, outside of the checkpoint, and is not read. Copy the file "
            "there."
        )


def _extra_state(folder: CheckpointFolder) -> dict[str, Any]:
    """Read the saved results of `Module.get_extra_state()`, by name in the state dict; {} if there are none."""
    return load_values(folder.path / EXTRA_STATE, folder=folder) if folder.has(EXTRA_STATE) else {}


@torch.no_grad()
def _give_own_memory(model: nn.Module) -> None:
    """Replace each expanded tensor of a model by a copy, because its elements share memory.

    torch cannot load values into such a tensor.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if not is_lazy(tensor) and any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride())):
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def _tied(model: nn.Module, state: Container[str]) -> set[str]:
    """Return the names of the model's weights that may be missing in `state`, the weights of a checkpoint.

    A tied weight has several names, and a checkpoint may store it under only one of these names.
    """
    tied = getattr(model, "_tied_weights_keys", None) or ()
    # A submodule may tie weights that `_tied_weights_keys` does not name. Both names refer to one tensor by now.
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    loaded = {id(tensor) for name, tensor in tensors if name in state}
    return {name for name, tensor in tensors if id(tensor) in loaded or any(name.endswith(key) for key in tied)}


def _misfit(missing: Collection[str], unexpected: Collection[str]) -> str:
    parts = []
    if missing:
        parts.append(f"the checkpoint lacks {', '.join(sorted(missing)[:_SHOWN])}")
    if unexpected:
        parts.append(f"the model lacks {', '.join(sorted(unexpected)[:_SHOWN])}")
    return "; ".join(parts)
