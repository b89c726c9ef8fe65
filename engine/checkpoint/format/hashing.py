"""Size and SHA-256 of files, computed while they are written or read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_BLOCK = 1 << 20
AT_ONCE = 8
"""Number of threads for work that mostly waits for the disk."""

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Digest:
    """Size and hash of a file."""

    size: int
    """The size in bytes."""
    sha256: str
    """The SHA-256 of the contents, in hexadecimal digits."""


class Hashing:
    """Hashes bytes in order on another thread, because reading or writing them takes about as long."""

    def __init__(self, thread: Executor) -> None:
        """Hash on `thread`, which must run one task at a time."""
        self._thread = thread
        self._hash = hashlib.sha256()
        self._parts: list[Future[None]] = []
        self._size = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes. They must not change until `digest` returns."""
        self._parts.append(self._thread.submit(self._hash.update, data))
        self._size += len(data)

    def digest(self) -> Digest:
        """Wait for the added bytes and return their digest."""
        for part in self._parts:
            part.result()
        self._parts.clear()
        return Digest(self._size, self._hash.hexdigest())


def digest_of(path: Path) -> Digest:
    """Read a file and return its digest."""
    found = hashlib.sha256()
    size = 0
    block = memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            found.update(block[:count])
            size += count
    return Digest(size, found.hexdigest())


def digest_of_bytes(data: bytes) -> Digest:
    """Return the digest of bytes in memory."""
    return Digest(len(data), hashlib.sha256(data).hexdigest())


def at_once(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Call `work` with each item on several threads. Return the results in the order of the items."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))
