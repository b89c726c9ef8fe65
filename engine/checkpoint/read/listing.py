"""Which checkpoints a folder holds, and which of them is the newest."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..format.files import MANIFEST, STATE, Checkpoint, parse_hidden, step_of
from ..format.manifest import read_manifest
from ..write.commit import put_back
from .verify import STRICT, Check, problems


def survey(output_dir: str | Path, check: Check = STRICT) -> list[Checkpoint]:
    """Return all checkpoints in a folder, oldest step first, each with what the quick check finds wrong with it."""
    directory = Path(output_dir)
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        step = step_of(path)
        if step is not None and path.is_dir():
            found.append(describe(path, step, check))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def describe(path: Path, step: int, check: Check = STRICT) -> Checkpoint:
    """Return what the folder of a checkpoint says of itself, and what the quick check finds wrong with it."""
    checkpoint = Checkpoint(path, step, problems=tuple(problems(path, full=False, check=check)))
    if checkpoint.problems or not (path / MANIFEST).exists():
        return checkpoint
    manifest = read_manifest(path)
    told = {name: manifest[name] for name in ("metrics", "run_id", "time", "seconds") if name in manifest}
    return replace(checkpoint, **told)


def list_checkpoints(output_dir: str | Path) -> list[Checkpoint]:
    """Return the good checkpoints in a folder, by the quick check, oldest step first."""
    return [checkpoint for checkpoint in survey(output_dir) if not checkpoint.problems]


def unfinished(output_dir: str | Path) -> list[Path]:
    """Return the folders that killed runs were writing, or removing, a checkpoint in."""
    directory = Path(output_dir)
    folders = sorted(directory.iterdir()) if directory.is_dir() else []
    return [path for path in folders if (hidden := parse_hidden(path)) is not None and hidden.abandoned]


def newest_first(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Sort checkpoints: those of the run that was the last to write one come first, later steps before earlier."""
    last_of: dict[str, tuple[float, int]] = {}
    for checkpoint in checkpoints:
        written = (checkpoint.time, checkpoint.step)
        last_of[checkpoint.run_id] = max(written, last_of.get(checkpoint.run_id, written))
    return sorted(checkpoints, key=lambda found: (last_of[found.run_id], found.step), reverse=True)


def best_of(checkpoint: Checkpoint) -> str:
    """Return the name of the folder of the best checkpoint, as the state in one tells it; empty where it does not."""
    try:
        best = json.loads((checkpoint.path / STATE).read_text(encoding="utf-8")).get("best_model_checkpoint")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    return Path(best).name if isinstance(best, str) else ""


def newest_good(checkpoints: list[Checkpoint], check: Check = STRICT) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """Return the newest checkpoint that the full check finds nothing wrong with, and those that were tried before it.

    Args:
        checkpoints: those that the quick check found good.
        check: how they are checked.

    Returns:
        The checkpoint, None if there is none, and the damaged ones with what is wrong with them.
    """
    damaged: list[Checkpoint] = []
    for checkpoint in newest_first(checkpoints):
        found = problems(checkpoint.path, full=True, check=check)
        if not found:
            return checkpoint, damaged
        damaged.append(replace(checkpoint, problems=tuple(found)))
    return None, damaged


def get_last_checkpoint(folder: str | Path) -> str | None:
    """Return the path of the newest good checkpoint in a folder, the one that `resume_from_checkpoint=True` takes.

    Every file of it is read and compared with what was written. None if there is no good checkpoint, or no folder.
    """
    with suppress(OSError):  # a folder that cannot be written to can still be read
        put_back(Path(folder))
    good, _ = newest_good(list_checkpoints(folder))
    return None if good is None else str(good.path)
