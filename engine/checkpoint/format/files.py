"""Names of checkpoint folders and of their files, and `CheckpointRecord`: folder, step and metrics of one save."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PREFIX = "checkpoint"
MODEL = "model.safetensors"
INDEX = f"{MODEL}.index.json"
"""Maps each weight to its file where the weights are in several files."""
PICKLED_MODEL = "pytorch_model.bin"
"""The weights of a transformers checkpoint that has no safetensors: pickled tensors."""
PICKLED_INDEX = f"{PICKLED_MODEL}.index.json"
"""Maps each weight to its file where pickled weights are in several files."""
ADAPTER = "adapter_model.safetensors"
"""The weights of an adapter of peft, in the folder or in a subfolder with the name of the adapter."""
PICKLED_ADAPTER = "adapter_model.bin"
"""The weights of an adapter that earlier releases of peft wrote."""
BESIDE_ADAPTERS = "other_weights.safetensors"
"""The tensors of a model with adapters that training changes but adapters do not hold."""
EXTRA_STATE = "extra_state.safetensors"
"""The values of `Module.get_extra_state()` that are not tensors."""
OPTIMIZER = "optimizer.safetensors"
SCHEDULER = "scheduler.safetensors"
SCALER = "scaler.safetensors"
CALLBACKS = "callbacks.safetensors"
RANDOM = "rng_state_{rank}.safetensors"
STATE = "trainer_state.json"
ARGUMENTS = "training_args.json"
HF_ARGUMENTS = "training_args.bin"
"""The pickled arguments of transformers. They are never read."""
MANIFEST = "manifest.json"

VERSION = 5
"""The format that is written.

- Format 1: the manifest does not list the files.
- Format 2: the manifest lists the files. Values that transformers does not know are at the top of the trainer state.
- Format 3: those values are under `stateful_callbacks`, so that transformers reads the trainer state.
- Format 4: the loader position does not hold the prefetched batch, but the RNG states before this batch was fetched.
- Format 5: the manifest lists the XXH3 of each file. It lists the SHA-256 where the package xxhash is not installed.
"""

TO_RESUME = (STATE, ARGUMENTS, MANIFEST, RANDOM.format(rank="*"), "optimizer*", "scheduler*", "scaler*", "callbacks*")
"""Patterns of the files that only resuming needs."""

LACKING = (
    "so the run cannot resume exactly. The checkpoint may have been written with `save_only_model`. "
    "Set `resume_partial=True` to resume with the state that is there and start the rest fresh."
)
"""The end of the error message for a checkpoint without a file of the training state."""

NATIVE = (
    ARGUMENTS,
    CALLBACKS,
    OPTIMIZER,
    SCHEDULER,
    SCALER,
    RANDOM.format(rank="*"),
    "optimizer-*-of-*.safetensors",
    "callbacks-*-of-*.safetensors",
)
"""Patterns of the files that only trainbus writes. A folder with such a file always has a manifest."""

_NAME = re.compile(rf"{PREFIX}-(\d+)")
_HIDDEN = re.compile(
    rf"\.tmp-{PREFIX}-(?P<step>\d+)-(?P<run>[0-9A-Za-z]*)-((?P<host>[0-9a-f]{{8}})-)?(?P<pid>\d+)"
    r"(?P<aside>-replaced|-removed)?"
)


@dataclass
class CheckpointRecord:
    """The checkpoint that a run is writing or has restored. Handlers of `on_save_begin` and `on_save` receive it."""

    path: Path
    """The folder, `checkpoint-<step>`."""
    step: int
    """The number of optimizer steps done."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics of the evaluation at this step; empty if there was none."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Nested values with tensors that callbacks store, by name. Handlers of `on_save_begin` may add to it, and
    those of `on_load` read it."""
    run_id: str = ""
    """The run that wrote the checkpoint; empty if unknown."""
    time: float = 0.0
    """When the checkpoint was written, in seconds since 1970; 0 if unknown."""
    seconds: float = 0.0
    """How long the run had trained, in seconds; 0 if unknown."""


Checkpoint = CheckpointRecord
"""The former name of `CheckpointRecord`."""


def folder_name(step: int) -> str:
    """Return the folder name of a step."""
    return f"{PREFIX}-{step}"


def step_of(path: Path) -> int | None:
    """Return the step in a folder name; None if the name is not `checkpoint-<step>`."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Hidden:
    """The name of a hidden folder: a new checkpoint before its commit, or an old checkpoint before its deletion."""

    step: int
    """The step of the checkpoint."""
    run_id: str
    """The run that named the folder, letters and digits only."""
    pid: int
    """The process that named the folder."""
    aside: str = ""
    """The state of the folder. `-replaced`: a new checkpoint of the same step replaces it. `-removed`: it is being
    deleted. Empty: it is being written."""
    host: str = ""
    """The host of the process, as `this_host` returns it; empty in names of earlier versions."""

    def __str__(self) -> str:
        process = f"{self.host}-{self.pid}" if self.host else str(self.pid)
        return f".tmp-{PREFIX}-{self.step}-{self.run_id}-{process}{self.aside}"

    @property
    def abandoned(self) -> bool:
        """Whether no other running process of this host works on the folder.

        True if this process named the folder, if the process that named it has ended, or if a process of another host
        named it.
        """
        return self.host not in ("", this_host()) or self.pid == os.getpid() or _has_ended(self.pid)

    @property
    def orphaned(self) -> bool:
        """Whether a process of this host named the folder and has ended. The process may belong to any run."""
        return self.host == this_host() and _has_ended(self.pid)


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # the process belongs to another user, or the number is not a process id
    return False


@cache
def this_host() -> str:
    """Return eight hexadecimal digits that identify this host. Process ids are unique on a host.

    On Linux they identify one boot of a machine and one container, because each container numbers its processes itself
    and two containers may have the same host name. Elsewhere they identify the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        host = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        host = socket.gethostname()
    return hashlib.sha256(host.encode()).hexdigest()[:8]


def hidden_name(step: int, run_id: str, aside: str = "") -> Hidden:
    """Build the hidden name of a folder that this process writes, replaces or deletes.

    Args:
        step: the step of the checkpoint.
        run_id: the id of the run.
        aside: the state of the folder: `-replaced`, `-removed`, or empty while it is written. See `Hidden.aside`.
    """
    return Hidden(step, re.sub(r"[^0-9A-Za-z]", "", run_id), os.getpid(), aside, this_host())


def parse_hidden(path: Path) -> Hidden | None:
    """Parse the name of a hidden folder. Return None if `path` is not named like a hidden folder."""
    match = _HIDDEN.fullmatch(path.name)
    if match is None:
        return None
    return Hidden(int(match["step"]), match["run"], int(match["pid"]), match["aside"] or "", match["host"] or "")


def readable_size(count: float) -> str:
    """Return a number of bytes as text with a decimal unit, such as `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
