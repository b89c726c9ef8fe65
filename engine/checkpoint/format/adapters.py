"""Adapters of peft in checkpoints: their files, and which weights of the model each file holds.

peft writes the adapter `default` into the folder and every other adapter into a subfolder with its name. In the files,
the names of the weights do not contain the name of the adapter. This module gets these names from peft, so every kind
of adapter works.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ....events.imported import imported
from .files import ADAPTER, PICKLED_ADAPTER
from .folder import CheckpointFolder

DEFAULT = "default"
"""The adapter whose files are in the folder itself."""
_PROMPT = "prompt_embeddings"
"""The entry of an adapter file with a computed prompt. peft loads the entry, but reports its name as unexpected."""
_PREFIX = "base_model.model."
"""The prefix of weight names in the adapter files of models that peft does not wrap."""


def adapter_files(folder: CheckpointFolder) -> dict[str, Path]:
    """Find the files of the adapters in a checkpoint: name of the adapter -> path.

    The result includes missing files that the manifest lists.
    """
    found: dict[str, Path] = {}
    for name in (PICKLED_ADAPTER, ADAPTER):
        for path in (*folder.matching(name), *folder.matching(f"*/{name}")):
            inner = path.relative_to(folder.path).parent
            if len(inner.parts) <= 1:
                found[inner.name or DEFAULT] = path
    return found


def adapters_of(model: Any) -> list[str]:
    """Return the names of the adapters of a model; an empty list if the model has none."""
    configs = getattr(unwrapped(model), "peft_config", None)
    return [*configs] if isinstance(configs, Mapping) and _peft() is not None else []


def saved_names(model: Any, adapter: str, weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the names of the weights of an adapter: name in the file of the adapter -> name in the model.

    Entries of the file that peft computes, such as the embeddings of a prompt, are left out.

    Args:
        model: the model.
        adapter: the name of the adapter.
        weights: the state dict of the model.
    """
    inner = unwrapped(model)
    plain = {name.removeprefix("_orig_mod."): tensor for name, tensor in weights.items()}
    written = {name.removeprefix("_orig_mod."): name for name in weights}
    name_of = {id(tensor): name for name, tensor in plain.items()}
    found = _peft().get_peft_model_state_dict(
        inner, state_dict=dict(plain), adapter_name=adapter, save_embedding_layers=False
    )
    prefix = "" if is_peft_model(inner) else _PREFIX
    return {f"{prefix}{key}": written[name_of[id(value)]] for key, value in found.items() if id(value) in name_of}


def file_name_of(model: Any, name: str) -> str:
    """Return the name in an adapter file for the weight `name` of the model, such as an embedding.

    If the model is not a `PeftModel`, the function adds the prefix `base_model.model.` to the name.
    """
    plain = name.removeprefix("_orig_mod.")
    return plain if is_peft_model(unwrapped(model)) else f"{_PREFIX}{plain}"


def load_computed(model: Any, adapter: str, entries: dict[str, torch.Tensor]) -> list[str]:
    """Let peft load entries of an adapter file that are not weights of the model, such as the embeddings of a prompt.

    Args:
        model: the model with the adapter.
        adapter: the name of the adapter.
        entries: the tensors by name in the file.

    Returns:
        The names of the entries that peft does not know.
    """
    result = _peft().set_peft_model_state_dict(unwrapped(model), entries, adapter_name=adapter)
    return [name for name in getattr(result, "unexpected_keys", ()) if name != _PROMPT]


def weights_beside(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the unfrozen weights and the buffers of a model that are not in the files of its adapters, by name.

    Args:
        model: a model with adapters.
        weights: the state dict of the model.
    """
    held = {name for adapter in adapters_of(model) for name in saved_names(model, adapter, weights).values()}
    frozen = {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}
    return {
        name: tensor
        for name, tensor in weights.items()
        if isinstance(tensor, torch.Tensor) and name not in held and name not in frozen
    }


def unwrapped(model: Any) -> Any:
    """Return the model that `torch.compile` wraps; the model itself if it is not compiled."""
    return getattr(model, "_orig_mod", model)


def is_peft_model(model: Any) -> bool:
    """Return whether a model is a `PeftModel`; False for a model of transformers that got adapters by `add_adapter`."""
    return _peft() is not None and isinstance(model, _peft().PeftModel)


def _peft() -> Any:
    # A model has adapters only if the program imported peft, so this function does not import it.
    return imported("peft")
