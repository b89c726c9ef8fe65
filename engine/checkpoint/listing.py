"""Which checkpoints a folder holds, and which of them a run goes on from."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...events.errors import CheckpointError
from .commit import put_back
from .files import MANIFEST, STATE, Checkpoint, parse_hidden, read_manifest, step_of
from .verify import STRICT, Check, problems

logger = logging.getLogger(__name__)

AUTO = "auto"
"""What resumes where there is something to resume from, and begins anew where there is nothing."""


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


def choose(output_dir: str | Path, wanted: str | Path | bool | None, check: Check = STRICT) -> Path | None:
    """Return the checkpoint that a run goes on from; None if it is to begin anew.

    Args:
        output_dir: where the run writes its checkpoints.
        wanted: the folder of a checkpoint, True for the newest good one in `output_dir`, "auto" for the same where
            there is any checkpoint, or nothing.
        check: how it is checked.

    Raises:
        CheckpointError: if the folder is not good, or there is no good one, saying what is wrong with each.
    """
    if not wanted:
        return None
    if wanted is True or wanted == AUTO:
        return _newest(Path(output_dir), check, needed=wanted is True)
    folder = Path(wanted)
    found = problems(folder, full=True, check=check)
    if found:
        good, _ = newest_good(list_checkpoints(folder.parent))
        remedy = f"Beside it, {good.path} is good." if good else "There is no good one beside it."
        raise CheckpointError(f"{folder} cannot be resumed from: {'; '.join(found)}. {remedy}")
    return folder


def _newest(output_dir: Path, check: Check, *, needed: bool) -> Path | None:
    with suppress(OSError):  # a folder that cannot be written to can still be read
        put_back(output_dir)
    everything = survey(output_dir, check)
    if not everything and not needed:
        return None
    good, tried = newest_good([checkpoint for checkpoint in everything if not checkpoint.problems], check)
    damaged = [checkpoint for checkpoint in everything if checkpoint.problems] + tried
    said = [f"{checkpoint.path.name}: {'; '.join(checkpoint.problems)}" for checkpoint in newest_first(damaged)]
    said += [f"{path.name}: {'; '.join(problems(path, full=False))}" for path in unfinished(output_dir)]
    listed = "".join(f"\n- {line}" for line in said)
    if good is None:
        raise CheckpointError(
            f"There is no checkpoint to resume from in '{output_dir}'"
            + (
                f", no good one. What is there:{listed}\nTo begin anew, leave `resume_from_checkpoint` out."
                if said
                else "."
            )
        )
    if said:
        logger.warning("%s is resumed from; what else is there and is not good:%s", good.path, listed)
    return good.path
