"""Checkpoint folders: the names in them and of them, and what each tells of itself."""

from __future__ import annotations

import json
import os
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

VERSION = 3
"""The format that is written. Of the first, a manifest did not list the files; up to the second, what only this library
keeps of a run's state stood in it at the top, where transformers did not read it."""

TO_RESUME = (STATE, ARGUMENTS, MANIFEST, RANDOM.format(rank="*"), "optimizer*", "scheduler*", "scaler*", "callbacks*")
"""Patterns of the files in a checkpoint that only resuming needs."""

LACKING = (
    "so the run cannot go on from it as it was. It may have been written with `save_only_model`; "
    "`resume_partial=True` goes on with what is there, and begins the rest anew."
)
"""What is said of a checkpoint that lacks a file, after which it is."""

_NAME = re.compile(rf"{PREFIX}-(\d+)")
_HIDDEN = re.compile(rf"\.tmp-{PREFIX}-(?P<step>\d+)-(?P<run>[0-9A-Za-z]*)-(?P<pid>\d+)(?P<aside>-replaced|-removed)?")


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
    seconds: float = 0.0
    """How long the run had trained by then, in seconds; 0 where its manifest does not say."""
    problems: tuple[str, ...] = ()
    """What is wrong with it on disk; empty if it is good."""


def folder_name(step: int) -> str:
    """Return the name of the folder of a step."""
    return f"{PREFIX}-{step}"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a folder; None if it is not named as a checkpoint is."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Hidden:
    """The name of a folder that is no checkpoint: not yet, or not any more."""

    step: int
    """The step of the checkpoint that it is to be, or was."""
    run_id: str
    """The run that named it, in letters and digits only."""
    pid: int
    """The process that named it."""
    aside: str = ""
    """Why it was put aside: `-replaced` by a new checkpoint of its step, or `-removed`; empty while being written."""

    def __str__(self) -> str:
        return f".tmp-{PREFIX}-{self.step}-{self.run_id}-{self.pid}{self.aside}"

    @property
    def abandoned(self) -> bool:
        """Whether nobody works on it any more: its process is this one, which does one thing at a time, or is gone."""
        if self.pid == os.getpid():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is another user's
        return False


def hidden_name(step: int, run_id: str, aside: str = "") -> Hidden:
    """Return the name under which this process writes a checkpoint, or puts one aside."""
    return Hidden(step, re.sub(r"[^0-9A-Za-z]", "", run_id), os.getpid(), aside)


def parse_hidden(path: Path) -> Hidden | None:
    """Return what a hidden folder's name says; None if it is no such folder."""
    match = _HIDDEN.fullmatch(path.name)
    return Hidden(int(match["step"]), match["run"], int(match["pid"]), match["aside"] or "") if match else None


_KINDS: dict[str, type | tuple[type, ...]] = {
    "format_version": int,
    "step": int,
    "run_id": str,
    "time": (int, float),
    "seconds": (int, float),
    "metrics": dict,
    "files": dict,
}
"""What the entries of a manifest are, where they are there."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises:
        OSError: if it cannot be read, or is not there.
        ValueError: if it is not what a manifest is.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError("it is no object")
    for name, kind in _KINDS.items():
        if name in manifest and not isinstance(manifest[name], kind):
            raise ValueError(f"its {name!r} is a {type(manifest[name]).__name__}")
    return manifest
