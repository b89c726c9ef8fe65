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
    run_id: str = ""
    """The run that wrote it; empty where its manifest does not say, or there is none."""
    time: float = 0.0
    """When it was written, in seconds since 1970; 0 where its manifest does not say."""


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
            manifest = _manifest(path)
            told = {name: manifest[name] for name in ("metrics", "run_id", "time") if name in manifest}
            found.append(Checkpoint(path, int(match[1]), **told))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest(checkpoints: list[Checkpoint]) -> Checkpoint:
    """Return the last checkpoint of the run that was the last to write one, be its step higher than others' or not."""
    last_run = max(checkpoints, key=lambda checkpoint: (checkpoint.time, checkpoint.step)).run_id
    return max(
        (checkpoint for checkpoint in checkpoints if checkpoint.run_id == last_run),
        key=lambda checkpoint: checkpoint.step,
    )


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
