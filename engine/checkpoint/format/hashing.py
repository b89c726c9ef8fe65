"""The size and hash of files, made while they are written or read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_BLOCK = 1 << 20
AT_ONCE = 8
"""Threads that work at the same time, most of which wait for the disk."""

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Digest:
    """What a file was when it was written."""

    size: int
    """In bytes."""
    sha256: str
    """The hash of its contents, in hexadecimal digits."""


class Hashing:
    """Bytes that are hashed in their order by a thread beside, as writing or reading them takes about as long."""

    def __init__(self, thread: Executor) -> None:
        """Hash on `thread`, which must be a single one."""
        self._thread = thread
        self._hash = hashlib.sha256()
        self._parts: list[Future[None]] = []
        self._size = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes, which must stay as they are until the digest is taken."""
        self._parts.append(self._thread.submit(self._hash.update, data))
        self._size += len(data)

    def digest(self) -> Digest:
        """Wait for what was added until now, and return what it is."""
        for part in self._parts:
            part.result()
        self._parts.clear()
        return Digest(self._size, self._hash.hexdigest())


def digest_of(path: Path) -> Digest:
    """Read a file and return its size and hash."""
    found = hashlib.sha256()
    size = 0
    block = memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            found.update(block[:count])
            size += count
    return Digest(size, found.hexdigest())


def at_once(work: Callable[[S], T], things: Iterable[S]) -> list[T]:
    """Do something with several things at the same time, on threads, and return what it gave of each, in order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, things))
