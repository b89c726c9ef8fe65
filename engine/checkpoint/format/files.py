"""Checkpoint folders: the names in them and of them, and what each tells of itself."""

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
OPTIMIZER = "optimizer.safetensors"
SCHEDULER = "scheduler.safetensors"
SCALER = "scaler.safetensors"
CALLBACKS = "callbacks.safetensors"
RANDOM = "rng_state_{rank}.safetensors"
STATE = "trainer_state.json"
ARGUMENTS = "training_args.json"
FOREIGN_ARGUMENTS = "training_args.bin"
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

OURS = (
    *(ARGUMENTS, CALLBACKS, OPTIMIZER, SCHEDULER, SCALER, RANDOM.format(rank="*")),
    *("optimizer-*-of-*.safetensors", "callbacks-*-of-*.safetensors"),
)
"""Patterns of the files that no other library writes, and always with a manifest."""

_NAME = re.compile(rf"{PREFIX}-(\d+)")
_HIDDEN = re.compile(
    rf"\.tmp-{PREFIX}-(?P<step>\d+)-(?P<run>[0-9A-Za-z]*)-((?P<host>[0-9a-f]{{8}})-)?(?P<pid>\d+)"
    r"(?P<aside>-replaced|-removed)?"
)


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
    host: str = ""
    """Where that process is, as `this_host` says it; empty where an earlier version did not say."""

    def __str__(self) -> str:
        process = f"{self.host}-{self.pid}" if self.host else str(self.pid)
        return f".tmp-{PREFIX}-{self.step}-{self.run_id}-{process}{self.aside}"

    @property
    def abandoned(self) -> bool:
        """Whether nobody here works on it: its process is this one, which does one thing at a time, is gone, or is of
        another machine, from which a run comes here when it is over there.
        """
        return self.host not in ("", this_host()) or self.pid == os.getpid() or _is_gone(self.pid)

    @property
    def orphaned(self) -> bool:
        """Whether the process that named it is known to be gone, whichever run it was of."""
        return self.host == this_host() and _is_gone(self.pid)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # it is another user's, or no number of a process
    return False


@cache
def this_host() -> str:
    """Return what tells the place where numbers of processes mean the same from all others, as eight digits.

    On Linux that is a boot of a machine and a container of it, in which processes are numbered anew; names of machines
    would not do, as two containers may have the same. Elsewhere it is the machine's name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        place = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        place = socket.gethostname()
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def hidden_name(step: int, run_id: str, aside: str = "") -> Hidden:
    """Return the name under which this process writes a checkpoint, or puts one aside."""
    return Hidden(step, re.sub(r"[^0-9A-Za-z]", "", run_id), os.getpid(), aside, this_host())


def parse_hidden(path: Path) -> Hidden | None:
    """Return what a hidden folder's name says; None if it is no such folder."""
    match = _HIDDEN.fullmatch(path.name)
    if match is None:
        return None
    return Hidden(int(match["step"]), match["run"], int(match["pid"]), match["aside"] or "", match["host"] or "")
