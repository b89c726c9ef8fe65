"""The files of a capsule: the data with which a program can repeat a failed step."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ....events.errors import CheckpointError
from ....events.recording.files import written
from ..format.codec import encode
from .model_files import save_weights

FOLDER = "capsules"
"""The folder of the capsules in the output folder."""
BATCHES, DESCRIPTION = "batches.safetensors", "capsule.json"
"""The files of a capsule, besides the weights in `model.safetensors`."""
FORMAT = 1
"""The version of the format of a capsule."""


def write_capsule(
    folder: Path,
    weights: Mapping[str, Any],
    batches: list[Any],
    states: list[dict[str, Any]],
    described: dict[str, Any],
    max_bytes: float,
) -> None:
    """Write a capsule into a new folder.

    Args:
        folder: the folder. It must not exist yet.
        weights: the weights and buffers from before the step. Values that are not tensors are left out.
        batches: the batches of the step.
        states: the RNG states before each batch.
        described: the values to write into `capsule.json`.
        max_bytes: the largest size of a capsule in bytes.

    Raises:
        CheckpointError: if the capsule is larger than `max_bytes`, or if a batch holds values that cannot be stored.
            Nothing is written then.
        OSError: if the folder exists, or if the files cannot be written.
    """
    kept = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    tensors, metadata = encode({"batches": batches, "states": states}, "batch")
    size = sum(tensor.nbytes for tensor in (*kept.values(), *tensors.values()))
    if size > max_bytes:
        raise CheckpointError(
            f"it would take {size / 1e9:.3g} GB. Set Capsule(max_gigabytes={size / 1e9 * 1.1:.3g}) to write it."
        )
    folder.mkdir(parents=True)
    save_weights(kept, folder)
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, folder / BATCHES, metadata)
    values = {
        "format": FORMAT,
        **described,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
    text = json.dumps(written(values), indent=2, allow_nan=False, default=str)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
