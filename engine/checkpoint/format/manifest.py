"""The manifest of a checkpoint: what it says, checked where it is read, and which files belong to the checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from ....events.errors import CheckpointError
from .files import MANIFEST, STATE, VERSION

_LARGEST = 2**53
"""Above it JSON's numbers are not exact, and none that is written comes near it."""
_LONGEST = 200
"""Characters in the name of a run: it becomes a part of names of folders."""
_RANDOM = re.compile(r"rng_state_(0|[1-9]\d{0,8})\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _whole(least: int) -> tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        return type(value) is int and least <= value <= _LARGEST

    return fits, f"a whole number from {least} on"


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _LARGEST  # which no NaN is


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "step": _whole(0),
    "world_size": _whole(1),
    "time": (_is_seconds, "a number of seconds"),
    "seconds": (_is_seconds, "a number of seconds"),
    "run_id": (lambda value: isinstance(value, str) and len(value) <= _LONGEST, "the name of a run"),
    "metrics": (lambda value: isinstance(value, dict), "an object"),
    "files": (lambda value: isinstance(value, dict), "an object"),
}
"""What each field is, where it is there."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, of which every field is of its type and in its range.

    Raises:
        CheckpointError: if it is not so, or cannot be read, naming the field.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError("it is no object")
        _check(manifest)
    except CheckpointError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error}") from error
    return manifest


def _check(manifest: Mapping[str, Any]) -> None:
    version: Any = manifest.get("format_version")
    fits, what = _whole(1)
    if not fits(version):
        raise ValueError(f"its 'format_version' is {_short(version)}, and not {what}")
    if version > VERSION:  # whose fields may be others
        raise CheckpointError(f"it is of format {version}, and this version reads formats up to {VERSION}")
    for name, (fits, what) in _FIELDS.items():
        if name in manifest and not fits(manifest[name]):
            raise ValueError(f"its {name!r} is {_short(manifest[name])}, and not {what}")
    files = manifest.get("files")
    if files is None:
        if version > 1:
            raise ValueError("it has no 'files'")
        return
    fits, _ = _whole(0)
    for name, entry in files.items():
        if not inside(name):
            raise CheckpointError(f"{MANIFEST} names {_short(name)}, which is outside of the folder")
        said = entry if isinstance(entry, dict) else {}
        if not fits(said.get("size")) or not _SHA256.fullmatch(str(said.get("sha256"))):
            raise ValueError(f"of {_short(name)} in its 'files', {_short(entry)} is no size and SHA-256")
    if STATE not in files:
        raise ValueError(f"among its 'files' is no {STATE}")
    processes = manifest.get("world_size")
    beyond = [name for name in files if processes is not None and (_rank_of(name) or 0) >= processes]
    if beyond:  # a process that was none
        raise ValueError(f"its 'world_size' is {processes}, and among its 'files' is {beyond[0]}")


def inside(name: str) -> bool:
    """Say whether the name of a file, as another file gives it, stays within the folder it is given in."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:80]}..."


def _rank_of(name: str) -> int | None:
    match = _RANDOM.fullmatch(name)
    return int(match[1]) if match else None


def listed(folder: Path) -> frozenset[str] | None:
    """Return the names of the files of a checkpoint; None where nothing lists them, as in those of other libraries.

    Raises:
        CheckpointError: if its manifest cannot be read.
    """
    if not (folder / MANIFEST).exists():
        return None
    files = read_manifest(folder).get("files")
    return None if files is None else frozenset(files)


def has(folder: Path, name: str) -> bool:
    """Say whether a file is there, and belongs to a checkpoint: what others put beside it does not.

    Raises:
        CheckpointError: if its manifest cannot be read.
    """
    names = listed(folder)
    return (names is None or name in names) and (folder / name).is_file()


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a checkpoint whose names match a pattern, sorted; also those that are missing.

    Raises:
        CheckpointError: if its manifest cannot be read.
    """
    names = listed(folder)
    if names is None:
        return sorted(folder.glob(pattern))
    return sorted(folder / name for name in names if fnmatch(name, pattern))


def random_files(folder: Path) -> dict[int, Path]:
    """Return the files with the random states of processes that a checkpoint has, by rank.

    Raises:
        CheckpointError: if its manifest cannot be read.
    """
    found = [(_rank_of(path.name), path) for path in matching(folder, "rng_state_*.safetensors") if path.is_file()]
    return dict(sorted((rank, path) for rank, path in found if rank is not None))
