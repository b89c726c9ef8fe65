"""LineFile: a file to which only whole lines are appended."""

from __future__ import annotations

import glob
import os
from pathlib import Path


class LineFile:
    """A text file to which `append` adds whole lines.

    Each call of `append` is a single write, so other programs never read half a line.
    """

    def __init__(self, path: Path) -> None:
        """Open a file to append lines. Create the file if it does not exist."""
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def append(self, text: str) -> None:
        """Append one or more lines. If the disk is full, the content of the file does not change.

        Raises:
            OSError: if the text cannot be written, or if the file was deleted.
        """
        data = escaped(text)
        before = os.fstat(self._file)
        if not before.st_nlink and not self._is_at(self.path):  # some file systems count no links
            raise OSError(f"{self.path} was deleted or replaced while the run wrote to it")
        if os.write(self._file, data) < len(data):  # the disk is full
            os.ftruncate(self._file, before.st_size)
            raise OSError(f"{self.path} has no space for a row of {len(data)} bytes")

    def find(self) -> Path:
        """Return the path of the file, also if a later run renamed the file to the next free name.

        Raises:
            OSError: if the file is not in its folder.
        """
        numbered = self.path.parent.glob(f"{glob.escape(self.path.stem)}-*{glob.escape(self.path.suffix)}")
        found = next(filter(self._is_at, (self.path, *numbered)), None)
        if found is None:
            raise OSError(f"{self.path} was deleted or moved while the run wrote to it")
        self.path = found
        return found

    def _is_at(self, path: Path) -> bool:
        return path.exists() and os.path.samestat(os.fstat(self._file), path.stat())

    def reopen(self) -> None:
        """Open the file at `self.path` again. Call this method after a new file replaced the old file at this path."""
        os.close(self._file)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)


def escaped(text: str) -> bytes:
    r"""Encode a text as UTF-8, with escapes for characters that UTF-8 does not encode.

    Such a character is half of a surrogate pair. In JSON, an escape such as `\ud800` is the same character.
    """
    return text.encode(errors="backslashreplace")


def whole_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file.

    A full disk or a power cut can leave an incomplete last line. The function ignores this line. For a missing file,
    the list is empty.
    """
    data = path.read_bytes() if path.exists() else b""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def free_name(path: Path) -> Path:
    """Return the first numbered path that does not exist.

    For `metrics.jsonl`, the numbered paths are `metrics-1.jsonl`, `metrics-2.jsonl` and so on.
    """
    number = 1
    while (found := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    return found
