"""A cache for tensors that verification reads. With it, a run loads exactly the bytes that verification hashed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock

import torch

from .files import TO_RESUME
from .hashing import Algorithm, AnyDigest, Digest, Hashing, digest_of
from .sharded import has_sharded_tensors
from .tensor_file import read_tensors

Tensors = tuple[dict[str, torch.Tensor], dict[str, str]]
"""The tensors of a file by name, and its metadata."""


class TensorCache:
    """Stores tensors of a checkpoint in memory, by file. The method `take` returns the tensors and removes them."""

    def __init__(self) -> None:
        """Start empty."""
        self._kept: dict[Path, Tensors] = {}
        self._lock = Lock()

    def digest_of(self, path: Path, algorithm: Algorithm = Digest) -> AnyDigest:
        """Read a file and return its size and hash. Store its tensors in memory if the file holds training state.

        Training state is, for example, the optimizer state. Model weights are not stored. If a file has a sharded
        tensor, none of its tensors are stored, because the shards are in other files.

        Raises:
            OSError: if the file cannot be read.
        """
        if path.suffix != ".safetensors" or not any(fnmatch(path.name, pattern) for pattern in TO_RESUME):
            return digest_of(path, algorithm)
        with ThreadPoolExecutor(1) as thread:
            hashing = Hashing(thread, algorithm)
            try:
                tensors = read_tensors(path, hashing.add)
            except ValueError:
                return digest_of(path, algorithm)  # the caller compares it with the manifest
        if not has_sharded_tensors(path):
            with self._lock:
                self._kept[path] = tensors
        return hashing.digest()

    def __contains__(self, path: Path) -> bool:
        return path in self._kept

    def take(self, path: Path) -> Tensors:
        """Return the tensors of a file, and remove them from the cache. If they are not in the cache, read the file.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if the file is not a valid safetensors file.
        """
        with self._lock:
            kept = self._kept.pop(path, None)
        return kept or read_tensors(path)

    def clear(self) -> None:
        """Drop all tensors."""
        with self._lock:
            self._kept.clear()
