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
"""The index of weights in several files. It maps each weight to its file."""
PICKLED_MODEL = "pytorch_model.bin"
"""The pickled weights of a transformers checkpoint without safetensors files."""
PICKLED_INDEX = f"{PICKLED_MODEL}.index.json"
"""The index of pickled weights in several files. It maps each weight to its file."""
ADAPTER = "adapter_model.safetensors"
"""The weights of an adapter of peft, in the folder or in a subfolder with the name of the adapter."""
PICKLED_ADAPTER = "adapter_model.bin"
"""The weights of an adapter that earlier releases of peft wrote."""
BESIDE_ADAPTERS = "other_weights.safetensors"
"""The trained weights and the buffers of a model with adapters that are not in the files of the adapters."""
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
"""The pickled arguments of transformers. trainbus never reads this file."""
MANIFEST = "manifest.json"
RUN_STATUS = "run_status.json"
"""The default name of the status file in the output folder."""

VERSION = 5
"""The version of the checkpoint format that a save writes.

- Format 1: the manifest does not list the files.
- Format 2: the manifest lists the files. Values that transformers does not know are at the top of the trainer state.
- Format 3: these values are under `stateful_callbacks`, so that transformers can read the trainer state.
- Format 4: the loader position has the RNG states before the prefetched batch was fetched, not the batch.
- Format 5: the manifest lists the XXH3 of each file, or the SHA-256 if the package xxhash is not installed.
"""

TO_RESUME = (STATE, ARGUMENTS, MANIFEST, RANDOM.format(rank="*"), "optimizer*", "scheduler*", "scaler*", "callbacks*")
"""Patterns of the files that a resume needs and inference does not need."""

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
"""Patterns of the files that only trainbus writes. A folder with such a file and without a manifest is damaged."""

_NAME = re.compile(rf"{PREFIX}-(\d+)")
_HIDDEN = re.compile(
    rf"\.tmp-{PREFIX}-(?P<step>\d+)-(?P<run>[0-9A-Za-z]*)-((?P<host>[0-9a-f]{{8}})-)?(?P<pid>\d+)"
    r"(?P<aside>-replaced|-removed)?"
)


@dataclass
class CheckpointRecord:
    """A checkpoint that a run writes, loads or deletes. Handlers of events such as `on_save` receive the record."""

    path: Path
    """The folder, `checkpoint-<step>`."""
    step: int
    """The number of completed optimizer steps."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics of the evaluation at this step; empty if there was none, or if the manifest does not have them."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Values that callbacks store in the checkpoint, by name: numbers, text and tensors, also in dicts and lists.
    Handlers of `on_save_begin` add values. Handlers of `on_load` read the values. In other events, the dict may be
    empty."""
    run_id: str = ""
    """The id of the run that wrote the checkpoint; empty if unknown."""
    time: float = 0.0
    """When the checkpoint was written, in seconds since 1970; 0 if unknown."""
    seconds: float = 0.0
    """How long the run had trained, in seconds; 0 if unknown."""

    @classmethod
    def of(cls, saved: Any, step: int, extra: dict[str, Any] | None = None) -> CheckpointRecord:
        """Build the record of an existing checkpoint.

        Args:
            saved: a `SavedCheckpoint`, or another record.
            step: the number of completed optimizer steps.
            extra: the field `extra` of the new record. None leaves the field empty.
        """
        return cls(
            saved.path,
            step,
            dict(saved.metrics),
            {} if extra is None else extra,
            run_id=saved.run_id,
            time=saved.time,
            seconds=saved.seconds,
        )


Checkpoint = CheckpointRecord
"""The former name of `CheckpointRecord`."""


def folder_name(step: int) -> str:
    """Return the name of the checkpoint folder of a step."""
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
    """The id of the run that saves the checkpoint. For `-removed`: the id of the run that saved the checkpoint.
    Characters other than letters and digits are left out."""
    pid: int
    """The id of the process that writes, replaces or deletes the folder."""
    aside: str = ""
    """The state of the folder. Empty: a save writes the folder. `-replaced`: a save replaces the folder by a new
    checkpoint of the same step. `-removed`: the process deletes the folder."""
    host: str = ""
    """The result of `this_host` in the process `pid`; empty in names of earlier versions."""

    def __str__(self) -> str:
        process = f"{self.host}-{self.pid}" if self.host else str(self.pid)
        return f".tmp-{PREFIX}-{self.step}-{self.run_id}-{process}{self.aside}"

    @property
    def abandoned(self) -> bool:
        """Whether the folder is treated as left over from a killed run.

        False while another process of this host with the id `pid` runs, because that process may still use the folder.
        True in all other cases, for example if the process is on another host.
        """
        return self.host not in ("", this_host()) or self.pid == os.getpid() or _has_ended(self.pid)

    @property
    def orphaned(self) -> bool:
        """Whether the process with the id `self.pid` ran on this host and has ended; False if `self.host` is empty."""
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

    On Linux, the digits identify one boot of a machine and one container: each container numbers its processes itself,
    and two containers may have the same host name. On other systems, the digits identify the host name.
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
        aside: `-replaced` if a save replaces the folder, `-removed` if this process deletes the folder, empty if a save
            writes the folder.
    """
    return Hidden(step, re.sub(r"[^0-9A-Za-z]", "", run_id), os.getpid(), aside, this_host())


def parse_hidden(path: Path) -> Hidden | None:
    """Parse the name of a folder as a `Hidden` name. Return None if the name has another form."""
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
