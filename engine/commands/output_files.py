"""Write the files that commands make, such as a report."""

from __future__ import annotations

import os
from pathlib import Path

from ...events.errors import ArgumentError


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically: at any time, the file has either the old or the complete new content.

    Missing folders are created. If the path is a link, the content goes to the file behind the link. If the path is not
    a regular file, such as `/dev/stdout` or a pipe, the content is written directly, without a replacement.

    Raises:
        ArgumentError: if the file cannot be written. An existing file keeps its content.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)
    except OSError as error:
        blocked = isinstance(error, (FileExistsError, NotADirectoryError))
        reason = "a part of its path is a file, not a folder" if blocked else error.strerror or error
        raise ArgumentError(f"{path} cannot be written: {reason}. Name a file that this user can write.") from error


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
