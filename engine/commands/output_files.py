"""Write the files that commands make, such as a report."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from ...events.errors import ArgumentError


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically: at any time, the file has either the old or the complete new content.

    Missing folders are created. If the path is a link, the content goes to the file behind the link. An existing file
    keeps its permissions. The content is written directly, without a replacement, in two cases: if the path is not a
    regular file, such as `/dev/stdout` or a pipe, or if an existing file cannot be replaced, for example because this
    user may not create files in its folder.

    Raises:
        ArgumentError: if the file cannot be written. After the error, an existing file still has its old content. Only
            a file that is written directly may be incomplete.
    """
    data = content.encode(errors="replace") if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, data)
    except (OSError, RuntimeError, ValueError) as error:  # the last two are of links in a circle and of null bytes
        blocked = isinstance(error, (FileExistsError, NotADirectoryError))
        reason = "a part of its path is a file, not a folder" if blocked else getattr(error, "strerror", None) or error
        raise ArgumentError(f"{path} cannot be written: {reason}. Name a file that this user can write.") from error


def _write(path: Path, data: bytes) -> None:
    try:
        _replace(path, data)
    except OSError as error:
        # EBUSY: the file itself is a mount, as in containers.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY) or not path.exists():
            raise
        path.write_bytes(data)


def _replace(path: Path, data: bytes) -> None:
    if path.exists() and not os.access(path, os.W_OK):  # a replacement needs no permission to write the file
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    beside = path.with_name(f".trainbus-{os.getpid()}")  # short, because the name of the file may have the full length
    try:
        beside.write_bytes(data)
        if path.exists():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
