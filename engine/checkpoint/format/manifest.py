"""The manifest of a checkpoint: reading it and validating every field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ....events.errors import CheckpointError
from .files import MANIFEST, STATE, VERSION
from .hashing import ALGORITHMS

_MAX_NUMBER = 2**53
"""The largest valid number. Some JSON readers round larger integers. A save writes far smaller numbers."""
_MAX_RUN_ID = 200
"""The most characters of a run id. Folder names contain the run id."""
_RANDOM = re.compile(r"rng_state_(0|[1-9]\d{0,8})\.safetensors")
_HASHES = {algorithm.key: re.compile(rf"[0-9a-f]{{{algorithm.digits}}}") for algorithm in ALGORITHMS}
"""Key of a hash in the entry of a file -> regular expression that the hash must match."""


def _whole_number(least: int) -> tuple[Callable[[Any], bool], str]:
    """Return a function that checks for a whole number of `least` or more, and a description of such a number."""

    def fits(value: Any) -> bool:
        return type(value) is int and least <= value <= _MAX_NUMBER

    return fits, f"a whole number from {least}"


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MAX_NUMBER  # False for NaN


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "step": _whole_number(0),
    "world_size": _whole_number(1),
    "time": (_is_seconds, "a number of seconds"),
    "seconds": (_is_seconds, "a number of seconds"),
    "run_id": (lambda value: isinstance(value, str) and len(value) <= _MAX_RUN_ID, "a run id"),
    "metrics": (lambda value: isinstance(value, dict), "an object"),
    "files": (lambda value: isinstance(value, dict), "an object"),
}
"""Optional field of the manifest -> function that checks its value, and description of a valid value for errors."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint and check the type and range of every field.

    Raises:
        CheckpointError: if the manifest cannot be read or a field is invalid. The message names the field.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError("it is not an object")
        _check(manifest)
    except CheckpointError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error}") from error
    return manifest


def _check(manifest: Mapping[str, Any]) -> None:
    version: Any = manifest.get("format_version")
    fits, expected = _whole_number(1)
    if not fits(version):
        raise ValueError(f"its 'format_version' is {_short(version)}, not {expected}")
    if version > VERSION:  # its fields may differ
        raise CheckpointError(f"it has format {version}, but this release reads formats up to {VERSION}")
    for name, (fits, expected) in _FIELDS.items():
        if name in manifest and not fits(manifest[name]):
            raise ValueError(f"its {name!r} is {_short(manifest[name])}, not {expected}")
    files = manifest.get("files")
    if files is None:
        if version > 1:
            raise ValueError("it has no 'files'")
        return
    fits, _ = _whole_number(0)
    for name, entry in files.items():
        if not inside(name):
            raise CheckpointError(f"{MANIFEST} names {_short(name)}, which is outside of the folder")
        digest = entry if isinstance(entry, dict) else {}
        if not fits(digest.get("size")) or not _has_one_hash(digest):
            known = " or ".join(algorithm.title for algorithm in ALGORITHMS)
            raise ValueError(f"its 'files' entry for {_short(name)} is {_short(entry)}, not a size and {known}")
    if STATE not in files:
        raise ValueError(f"its 'files' do not include {STATE}")
    world_size = manifest.get("world_size")
    beyond = [name for name in files if world_size is not None and (rank_of(name) or 0) >= world_size]
    if beyond:
        raise ValueError(f"its 'world_size' is {world_size}, and its 'files' include {beyond[0]}")


def _has_one_hash(entry: Mapping[str, Any]) -> bool:
    hashes = [form.fullmatch(str(entry[key])) for key, form in _HASHES.items() if key in entry]
    return len(hashes) == 1 and hashes[0] is not None


def inside(name: str) -> bool:
    """Return whether `name` is a relative path without `..`, such as `a/b.json`. Return False for an empty text."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def rank_of(name: str) -> int | None:
    """Return the rank in the name of an RNG state file; None for any other file."""
    match = _RANDOM.fullmatch(name)
    return int(match[1]) if match else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
