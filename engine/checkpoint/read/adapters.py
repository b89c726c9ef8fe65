"""Reading the adapters of a checkpoint, and loading them into a model with adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ....events.errors import CheckpointError
from ...distributed.memory_errors import lacks_memory
from ...seams import LoadModel
from ..format.adapters import DEFAULT, adapter_files, adapters_of, file_name_of, load_computed, saved_names
from ..format.files import BESIDE_ADAPTERS
from ..format.folder import CheckpointFolder
from ..format.sharded import fitted
from .pickled import load_pickled_weights

Weights = dict[str, torch.Tensor]


def read_adapters(folder: CheckpointFolder) -> dict[str, Weights]:
    """Read the adapters of a checkpoint: name of the adapter -> its weights, by their names in the file.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    return {name: _read(path) for name, path in adapter_files(folder).items()}


def read_beside(folder: CheckpointFolder) -> Weights:
    """Read the saved weights that are in no adapter: name in the model -> weight. Return {} if there are none."""
    return _read(folder.path / BESIDE_ADAPTERS) if folder.has(BESIDE_ADAPTERS) else {}


def load_adapters(model: nn.Module, folder: CheckpointFolder, load: LoadModel) -> str:
    """Load the adapters of a checkpoint into the adapters of a model. All ranks must call this function.

    Args:
        model: the model.
        folder: the checkpoint.
        load: a function of a model and a state dict that loads the weights. It returns the missing and the unexpected
            names. The seam `load_model` is such a function.

    Returns:
        Why the saved adapters do not fit the model; an empty string if they fit.

    Raises:
        CheckpointError: if a file cannot be read.
        RuntimeError: if a weight has another shape.
    """
    saved, own = _of_model(read_adapters(folder), model), adapters_of(model)
    if not own:
        return (
            f"the checkpoint has the adapters {', '.join(saved)} and not the weights of the model, which has no "
            "adapter. Build the model as the saved run did, for example with `peft.get_peft_model(model, config)`"
        )
    if saved.keys() != {*own}:
        return f"the checkpoint has the adapters {', '.join(saved)}, but the model has {', '.join(own)}"
    weights = model.state_dict()
    whole_names = {file_name_of(model, name): name for name in weights}
    state: dict[str, Any] = {}
    computed: dict[str, Weights] = {}
    lacking: list[str] = []
    beside = read_beside(folder)
    for adapter, entries in saved.items():
        names = saved_names(model, adapter, weights)
        lacking += [f"{key} of {adapter}" for key in names if key not in entries]
        names = whole_names | names
        state |= {names[key]: value for key, value in entries.items() if key in names}
        rest = {key: value for key, value in entries.items() if key not in names}
        # peft computed the rest. Load it, unless the checkpoint also has the weights from which peft computes it.
        stored = any(adapter in name.split(".") for name in beside)
        computed |= {adapter: rest} if rest and not stored else {}
    unknown = [key for adapter, rest in computed.items() for key in load_computed(model, adapter, rest)]
    state |= beside
    _, unexpected = load(model, {name: fitted(value, weights.get(name)) for name, value in state.items()})
    parts = [f"the checkpoint lacks {', '.join(sorted(lacking)[:20])}"] if lacking else []
    unknown += unexpected
    return "; ".join([*parts, *([f"the model lacks {', '.join(sorted(unknown)[:20])}"] if unknown else [])])


def _of_model(saved: dict[str, Weights], model: nn.Module) -> dict[str, Weights]:
    """Return saved adapters under the names of the adapters of a model: adapter name -> weights.

    If `saved` has only the adapter `default`, and the model has only one adapter, return the weights under the name of
    the model's adapter. Otherwise, return `saved` unchanged. transformers saves a single adapter without its name, and
    `read_adapters` calls this adapter `default`.
    """
    own = adapters_of(model)
    if len(own) == 1 and [*saved] == [DEFAULT]:
        return {own[0]: saved[DEFAULT]}
    return saved


def _read(path: Path) -> Weights:
    if path.suffix == ".bin":
        return load_pickled_weights(path)
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: the alignment in the file is arbitrary, and it can change how matrix products round.
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        if lacks_memory(error):
            raise
        raise CheckpointError(f"{path} cannot be read: {error}") from error
