"""Small checkpoints on disk, and ways to damage them, that the tests of the checkpoint store share."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.models import Regression
from support.trainers import regression_trainer
from trainbus.engine.api.costs.goodput import NAME as GOODPUT
from trainbus.engine.checkpoint.format.files import VERSION, Hidden, hidden_name
from trainbus.engine.checkpoint.read.choosing import choose
from trainbus.engine.checkpoint.write.commit import Staging
from trainbus.engine.commands.status import NAME as STATUS

GONE = 2**22
"""A process id that no process has: on Linux, all ids are lower."""


def saving(folder: Path, steps: int, *callbacks: Any, seed: int = 0, **args: Any) -> Any:
    """Return a trainer of a model with dropout. It saves every step."""
    defaults = {"max_steps": steps, "lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 1}
    model = Regression(dropout=0.3, seed=seed)
    return regression_trainer(folder, model, args={**defaults, **args}, callbacks=list(callbacks))


def stage(output_dir: Path, step: int, run_id: str = "run", *, pid: int | None = None, **texts: str) -> Staging:
    """Return a staging folder with text files. `pid` is the process that named it; by default this process."""
    name = hidden_name(step, run_id) if pid is None else Hidden(step, run_id, pid)
    staging = Staging(output_dir / f"checkpoint-{step}", name)
    staging.create()
    for file, text in {"model": "weights", "trainer_state": "{}", **texts}.items():
        staging.write_text(f"{file}.json", text)
    return staging


def commit(output_dir: Path, step: int, run_id: str = "run", *, model: str = "weights", **facts: Any) -> Path:
    """Commit a checkpoint of text files, and return its folder."""
    staging = stage(output_dir, step, run_id, model=model)
    staging.flush()
    defaults = {
        "format_version": VERSION,
        "step": step,
        "run_id": run_id,
        "time": float(step),
        "seconds": 0.0,
        "metrics": {},
    }
    staging.commit({**defaults, **facts}, staging.digests)
    return staging.target


def chosen(output_dir: Path, wanted: Any) -> Path | None:
    """Return the folder of the checkpoint that a single process would resume from; None for a fresh start."""
    checkpoint = choose(output_dir, wanted)
    return None if checkpoint is None else checkpoint.path


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted, without the two files that every run writes: status and goodput."""
    return sorted(path.name for path in folder.iterdir() if path.name not in (STATUS, GOODPUT))


def rewrite(folder: Path, **changes: Any) -> None:
    """Change entries of a checkpoint's manifest."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def of_the_first_format(folder: Path) -> None:
    """Make the manifest one that this library wrote before manifests listed the files."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({k: manifest[k] for k in ("step", "run_id", "time", "metrics")} | {"format_version": 1}))


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let the system refuse files of more than `size` bytes, as a disk does on which only such files have space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
