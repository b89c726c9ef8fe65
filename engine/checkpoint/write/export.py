"""Export a model for inference, as a program that PyTorch runs without the model's Python code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ....events.errors import ModelError
from ...data.batches import map_tensors

EXPORTED = "model.pt2"
"""The file of an exported model. `torch.export.load` reads it."""


def export_model(model: nn.Module, inputs: Any, folder: Path) -> Path:
    """Write `model.pt2`, the forward of a model in evaluation mode, traced by `torch.export`.

    The program takes inputs of other sizes if the model allows it, such as other batch sizes.

    Args:
        model: the model. Each of its modules keeps its mode.
        inputs: an example: a mapping, passed by name, or a tuple or list, passed by position.
        folder: where to write. It is created if necessary.

    Returns:
        The path of the file. `torch.export.load(path).module()` is the model.

    Raises:
        ModelError: if the model cannot be traced.
    """
    named = isinstance(inputs, Mapping)
    example = map_tensors(_two_rows, dict(inputs) if named else tuple(inputs))
    args, kwargs = ((), example) if named else (example, {})
    shapes = map_tensors(lambda tensor: dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO), example)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:  # the tracer raises errors of many kinds
        raise ModelError(
            f"{type(model).__name__} cannot be exported: torch.export cannot trace its forward. Remove branches on "
            f"values of tensors from it, or export it yourself. {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, folder / EXPORTED)
    return folder / EXPORTED


def _two_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Repeat the sample of a tensor that has one sample, because torch.export would fix a batch size of 1.

    A tensor with another number of samples is returned unchanged.
    """
    return tensor.detach() if tensor.dim() == 0 or len(tensor) != 1 else tensor.detach().repeat_interleave(2, 0)
