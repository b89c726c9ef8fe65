"""Weights with other names in the checkpoint than in the model. `from_pretrained` of the model translates the names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...distributed.memory_errors import lacks_memory
from ..format.folder import CheckpointFolder


def renamed(model: nn.Module, folder: CheckpointFolder, state: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of a checkpoint with the names of the model.

    `save_pretrained` of transformers may write an old layout: other names, split or merged tensors. Only the class of
    the model knows this layout. So `from_pretrained` of the class reads the folder into a second model, on the CPU.

    Args:
        model: the model.
        folder: the checkpoint.
        state: the weights of the checkpoint, by their names in the files.

    Returns:
        The weights by their names in the model. The result is `state` if its names fit the model, or if
        `from_pretrained` does not load every weight.
    """
    names = set(model.state_dict())
    read = getattr(type(model), "from_pretrained", None)
    if read is None or not set(state) - names or not names - set(state):
        return state
    try:
        with torch.random.fork_rng(devices=[]):  # the second model draws its initial weights
            dtype = next((weight.dtype for weight in model.parameters()), torch.get_default_dtype())
            other, told = read(
                folder.path, config=getattr(model, "config", None), dtype=dtype, output_loading_info=True
            )
    except Exception as error:
        if lacks_memory(error):
            raise
        return state  # the error about the names follows
    lost = [told.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")]
    found: dict[str, Any] = other.state_dict()
    return state if any(lost) or set(found) != names else found
