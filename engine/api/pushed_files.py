"""Copies of the files of a checkpoint in a folder for a push to a hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from ..checkpoint.format import files

NOT_OF_MODEL = tuple(pattern for pattern in files.TO_RESUME if pattern != files.ARGUMENTS)
"""Patterns of files in a checkpoint that are not pushed with the model. The training arguments do not match."""


def files_of_model(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint to push as the model, including the training arguments."""
    found = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    return [path for path in found if not any(fnmatch(path.name, pattern) for pattern in NOT_OF_MODEL)]


def stage(paths: Iterable[Path], root: Path, target: Path) -> Path:
    """Make hard links to files of a checkpoint in a folder for a push, and return this folder.

    If the checkpoint is rotated during the push, the links stay. If a hard link is not possible, copy the file.

    Args:
        paths: the files.
        root: the folder of the files. The files keep their paths relative to this folder.
        target: the folder for the push. The function first deletes its content, such as files of a killed run.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in paths:
        new = target / path.relative_to(root)
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, new)
        except OSError:
            shutil.copy2(path, new)
    return target
