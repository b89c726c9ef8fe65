"""What was read when a checkpoint was checked, kept until it is loaded: what is loaded is what was checked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock

import torch

from ..format.files import TO_RESUME
from ..format.hashing import Digest, Hashing, digest_of
from ..format.sharded import tells_of_split
from ..format.tensor_file import read_tensors

Tensors = tuple[dict[str, torch.Tensor], dict[str, str]]
"""The tensors of a file by name, and its metadata."""


class Contents:
    """Files of tensors of one checkpoint, in memory; each is taken out once."""

    def __init__(self) -> None:
        """Begin with none."""
        self._of: dict[Path, Tensors] = {}
        self._lock = Lock()

    def digest_of(self, path: Path) -> Digest:
        """Read a file and return its size and hash; of what only resuming needs, the tensors are kept.

        Those of another checkpoint are let go.

        Raises:
            OSError: if it cannot be read.
        """
        if path.suffix != ".safetensors" or not any(fnmatch(path.name, pattern) for pattern in TO_RESUME):
            return digest_of(path)
        with self._lock:
            self._of = {known: tensors for known, tensors in self._of.items() if known.parent == path.parent}
        with ThreadPoolExecutor(1) as thread:
            hashing = Hashing(thread)
            try:
                tensors = read_tensors(path, hashing.add)
            except ValueError:
                return digest_of(path)  # of which the caller will find that it is not what was written
        if not tells_of_split(path):  # of such a file the rest is in others
            with self._lock:
                self._of[path] = tensors
        return hashing.digest()

    def __contains__(self, path: Path) -> bool:
        return path in self._of

    def take(self, path: Path) -> Tensors:
        """Return what is in a file, which is read now unless it was kept.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is no file of tensors.
        """
        with self._lock:
            kept = self._of.pop(path, None)
        return kept or read_tensors(path)

    def clear(self) -> None:
        """Let go of what was not taken."""
        with self._lock:
            self._of.clear()
