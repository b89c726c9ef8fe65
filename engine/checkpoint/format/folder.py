"""A checkpoint folder: its manifest and the files that belong to it."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from .files import ARGUMENTS, MANIFEST, STATE
from .hashing import AnyDigest, digest_in
from .manifest import rank_of, read_manifest


class CheckpointFolder:
    """A checkpoint folder. Its manifest, trainer state and arguments are read at most once, at the first access.

    Files that the manifest does not list do not belong to the checkpoint. If no manifest lists files, as in checkpoints
    of other libraries, all files in the folder belong to the checkpoint.
    """

    def __init__(self, path: Path) -> None:
        """Create an object for the folder `path`. Nothing is read."""
        self.path = path

    @cached_property
    def manifest(self) -> dict[str, Any] | None:
        """The validated manifest; None if the folder has no manifest.

        Raises:
            CheckpointError: if the manifest cannot be read or is invalid.
        """
        return read_manifest(self.path) if (self.path / MANIFEST).exists() else None

    @cached_property
    def digests(self) -> dict[str, AnyDigest] | None:
        """The digests (size and hash) of the checkpoint's files, by name; None if no manifest lists the files.

        Raises:
            CheckpointError: if the manifest cannot be read or is invalid.
        """
        files = None if self.manifest is None else self.manifest.get("files")
        return None if files is None else {name: digest_in(entry) for name, entry in files.items()}

    @cached_property
    def names(self) -> frozenset[str] | None:
        """The names of the files that belong to the checkpoint; None if no manifest lists the files.

        Raises:
            CheckpointError: if the manifest cannot be read or is invalid.
        """
        return None if self.digests is None else frozenset(self.digests)

    @cached_property
    def state_bytes(self) -> bytes:
        """The contents of the trainer state file. Verification hashes these bytes. Loading parses the same bytes.

        Raises:
            OSError: if the file cannot be read.
        """
        return (self.path / STATE).read_bytes()

    @cached_property
    def argument_bytes(self) -> bytes:
        """The contents of the file with the arguments. Verification hashes these bytes. A resume parses the same bytes.

        Raises:
            OSError: if the file cannot be read.
        """
        return (self.path / ARGUMENTS).read_bytes()

    def has(self, name: str) -> bool:
        """Return whether a file exists and belongs to the checkpoint."""
        return (self.names is None or name in self.names) and (self.path / name).is_file()

    def matching(self, pattern: str) -> list[Path]:
        """Return the sorted paths of the files of the checkpoint that match a glob pattern, such as `optimizer*`.

        The result includes missing files that the manifest lists.
        """
        if self.names is None:
            return sorted(self.path.glob(pattern))
        return sorted(self.path / name for name in self.names if fnmatch(name, pattern))

    def parts_of(self, name: str) -> list[Path]:
        """Return the paths of the shard files of a file: `optimizer-*-of-*.safetensors` for `optimizer.safetensors`.

        The result includes missing files that the manifest lists.
        """
        path = self.path / name
        return self.matching(f"{path.stem}-*-of-*{path.suffix}")

    def is_complete(self, name: str) -> bool:
        """Return whether the checkpoint has the file `name` and all shard files of this file."""
        return self.has(name) and all(part.is_file() for part in self.parts_of(name))

    def rng_files(self) -> dict[int, Path]:
        """Find the RNG state files that trainbus wrote and that exist: rank -> path."""
        found = [(rank_of(path.name), path) for path in self.matching("rng_state_*.safetensors") if path.is_file()]
        return dict(sorted((rank, path) for rank, path in found if rank is not None))
