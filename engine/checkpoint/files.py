"""Checkpoint folders: their names, what each tells of itself, and which of them are there."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PREFIX = "checkpoint"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
SCHEDULER = "scheduler.safetensors"
SCALER = "scaler.safetensors"
CALLBACKS = "callbacks.safetensors"
RANDOM = "rng_state_{rank}.safetensors"
STATE = "trainer_state.json"
ARGUMENTS = "training_args.json"
MANIFEST = "manifest.json"

_NAME = re.compile(rf"{PREFIX}-(\d+)")


@dataclass
class Checkpoint:
    """A checkpoint: being written, as `on_save_begin` hears of it, or on disk."""

    path: Path
    """Its folder, `checkpoint-<step>`."""
    step: int
    """The optimizer steps that were done."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics of the evaluation made at that very step, if there was one."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What others want kept in it: nested values with tensors, by name. Handlers of `on_save_begin` may add to it."""


def folder_name(step: int) -> str:
    """Return the name of the folder of a step."""
    return f"{PREFIX}-{step}"


def list_checkpoints(output_dir: str | Path) -> list[Checkpoint]:
    """Return the complete checkpoints in a folder, oldest step first.

    Complete is what has a manifest, which is written last; what transformers wrote has none and counts by its state.
    """
    found = []
    directory = Path(output_dir)
    for path in directory.iterdir() if directory.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and ((path / MANIFEST).is_file() or (path / STATE).is_file()):
            found.append(Checkpoint(path, int(match[1]), _metrics(path)))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _metrics(path: Path) -> dict[str, Any]:
    try:
        metrics = json.loads((path / MANIFEST).read_text(encoding="utf-8")).get("metrics", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return metrics if isinstance(metrics, dict) else {}
