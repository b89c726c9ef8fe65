"""Export a model for inference with `torch.export`. PyTorch runs the exported file without the model's Python code."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ....events.errors import ModelError
from ...data.batches import map_tensors
from ...distributed.memory_errors import lacks_memory
from .whole_files import whole_file

EXPORTED = "model.pt2"
"""The file of an exported model. `torch.export.load` reads it."""


def export_model(model: nn.Module, inputs: Any, folder: Path) -> Path:
    """Write `model.pt2`, the forward of a model in evaluation mode, traced by `torch.export`.

    The exported program also accepts other sizes than the sizes of `inputs`, such as another batch size. If the forward
    works only with one size, the exported program accepts only this size.

    Args:
        model: the model. After the export, each module is in training or evaluation mode as before.
        inputs: an example of the inputs. The values of a mapping are passed by name. The items of a tuple or list are
            passed by position.
        folder: the folder to write into. It is created if necessary.

    Returns:
        The path of the file. `torch.export.load(path).module()` is the model.

    Raises:
        ModelError: if the model cannot be traced.
        CheckpointError: if the file cannot be written.
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
        if lacks_memory(error):
            raise
        raise ModelError(
            f"{type(model).__name__} cannot be exported: torch.export cannot trace its forward. Remove branches on "
            f"values of tensors from it, or export it yourself. {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    archive = io.BytesIO()
    torch.export.save(program, archive)
    with whole_file(folder / EXPORTED, "The exported model") as path:
        # If torch itself writes the file and the disk is full, a destructor of torch ends the process.
        path.write_bytes(archive.getbuffer())
    return folder / EXPORTED


def _two_rows(tensor: torch.Tensor) -> torch.Tensor:
    """If a tensor has one sample, repeat the sample, because torch.export would fix a batch size of 1.

    The function does not repeat a scalar, or a tensor with another number of samples.
    """
    return tensor.detach() if tensor.dim() == 0 or len(tensor) != 1 else tensor.detach().repeat_interleave(2, 0)
