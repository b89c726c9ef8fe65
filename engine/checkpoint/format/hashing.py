"""Size and hash of files, computed while they are written or read.

The hash finds damage, such as a torn write or a flipped bit. It does not protect against an attack. XXH3 finds damage
as well as SHA-256 and costs much less. On a processor with instructions for SHA, one core hashes 1.6 GiB/s with
SHA-256, 3.3 GiB/s with the CRC-32 of zlib, and 44 GiB/s with XXH3. XXH3 needs the package xxhash. Without that package,
a save uses SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from ....events.errors import MissingExtra

_BLOCK = 1 << 18
"""Bytes that are read at a time. They fit the cache of a core, so the hash does not read them from memory again."""
AT_ONCE = 8
"""The number of threads for tasks that mostly wait for the disk."""

S = TypeVar("S")
T = TypeVar("T")


class Hash(Protocol):
    """A hash that is being computed. The hash objects of `hashlib` and of xxhash implement this protocol."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the hash of the added bytes in hexadecimal digits."""


@dataclass(frozen=True)
class Digest:
    """Size and SHA-256 of a file."""

    title: ClassVar[str] = "SHA-256"
    """The name of the hash in errors."""
    key: ClassVar[str] = "sha256"
    """The name of the hash in a manifest."""
    digits: ClassVar[int] = 64
    """The number of hexadecimal digits."""
    slow: ClassVar[bool] = True
    """Whether computing the hash takes about as long as writing the bytes. `Hashing` then uses another thread."""

    size: int
    """The size in bytes."""
    sha256: str
    """The SHA-256 of the contents, in hexadecimal digits."""

    @staticmethod
    def new() -> Hash:
        """Create a SHA-256 hash object, without any bytes yet."""
        return hashlib.sha256()


@dataclass(frozen=True)
class Xxh3Digest:
    """Size and XXH3 of a file."""

    title: ClassVar[str] = "XXH3"
    key: ClassVar[str] = "xxh3_128"
    digits: ClassVar[int] = 32
    slow: ClassVar[bool] = False

    size: int
    """The size in bytes."""
    xxh3_128: str
    """The XXH3 of the contents with 128 bits, in hexadecimal digits."""

    @staticmethod
    def new() -> Hash:
        """Create an XXH3 hash object, without any bytes yet.

        Raises:
            MissingExtra: if the package xxhash is not installed.
        """
        try:
            xxhash = import_module("xxhash")
        except ImportError as error:
            raise MissingExtra(
                "the files of the checkpoint are hashed with XXH3, which needs xxhash: pip install 'trainbus[xxhash]'"
            ) from error
        found: Hash = xxhash.xxh3_128()
        return found


AnyDigest = Digest | Xxh3Digest
Algorithm = type[Digest] | type[Xxh3Digest]
ALGORITHMS: tuple[Algorithm, ...] = (Digest, Xxh3Digest)
"""The hash algorithms that a manifest may use."""


def to_write() -> Algorithm:
    """Return the hash algorithm for new files: XXH3 if xxhash is installed, else SHA-256."""
    try:
        Xxh3Digest.new()
    except MissingExtra:
        return Digest
    return Xxh3Digest


def digest_in(entry: dict[str, Any]) -> AnyDigest:
    """Return the digest of a file. `entry` describes the file in a valid manifest."""
    algorithm = next(algorithm for algorithm in ALGORITHMS if algorithm.key in entry)
    return algorithm(entry["size"], entry[algorithm.key])


class Hashing:
    """A hash of bytes that are added in order. SHA-256 is slow, so another thread computes it."""

    def __init__(self, thread: Executor, algorithm: Algorithm = Digest) -> None:
        """Create the hash of no bytes. `thread` must run one task at a time. Only SHA-256 uses `thread`."""
        self._thread = thread
        self._algorithm = algorithm
        self._hash = algorithm.new()
        self._parts: list[Future[object]] = []
        self._size = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes. The caller must not change the bytes until `digest` returns."""
        self._size += len(data)
        if self._algorithm.slow:
            self._parts.append(self._thread.submit(self._hash.update, data))
        else:
            self._hash.update(data)

    def digest(self) -> AnyDigest:
        """Wait until all added bytes are hashed, and return their digest."""
        for part in self._parts:
            part.result()
        self._parts.clear()
        return self._algorithm(self._size, self._hash.hexdigest())


def digest_of(path: Path, algorithm: Algorithm = Digest) -> AnyDigest:
    """Read a file and return its digest."""
    found = algorithm.new()
    size = 0
    block = memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            found.update(block[:count])
            size += count
    return algorithm(size, found.hexdigest())


def digest_of_bytes(data: bytes, algorithm: Algorithm = Digest) -> AnyDigest:
    """Return the digest of bytes in memory."""
    found = algorithm.new()
    found.update(data)
    return algorithm(len(data), found.hexdigest())


def at_once(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Call `work` once for each item, on several threads. Return the results in the order of the items."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))
