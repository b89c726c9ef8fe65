"""Committing a checkpoint: write a hidden staging folder, then rename it to the final name.

The order of the operations makes the save safe against a kill or a power loss at any point:

1. Every file is written, hashed and synchronised to the disk (`fsync`).
2. The manifest, which lists the files, is written and synchronised. The folders are synchronised.
3. The folder is renamed to its final name. The folder that contains it is synchronised.

To delete a checkpoint, its folder is first renamed. So a half-deleted checkpoint never has its final name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ..format.files import MANIFEST, Hidden, folder_name, hidden_name, parse_hidden
from ..format.folder import CheckpointFolder
from ..format.hashing import AT_ONCE, Algorithm, AnyDigest, Digest, Hashing, at_once, digest_of, to_write
from ..read.verify import damage
from .links import NO_LINKS, Links


class HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO, thread: Executor, algorithm: Algorithm = Digest) -> None:
        """Write into `file`. `thread` must run one task at a time. Only SHA-256 uses `thread`."""
        self._file = file
        self._hashing = Hashing(thread, algorithm)

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes. The caller must not change the bytes until `digest` returns."""
        self._hashing.add(data)
        self._file.write(data)

    def digest(self) -> AnyDigest:
        """Wait until all written bytes are hashed, and return their digest."""
        return self._hashing.digest()


class Staging:
    """The staging folder of a checkpoint. After all files are written, `commit` renames it to the final name."""

    def __init__(self, target: Path, name: Hidden) -> None:
        """Set the path of the staging folder: `name`, next to the final path `target`. `create` creates the folder."""
        self.target = target
        self.links: Links = NO_LINKS
        """Replaces files that did not change by hard links to an earlier checkpoint."""
        self.name = name
        self.path = target.with_name(str(name))
        self._algorithm = to_write()
        self.digests: dict[str, AnyDigest] = {}
        self._beside = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="staging")
        self._reading: dict[str, Future[AnyDigest]] = {}
        self._synchronising: list[Future[None]] = []

    def create(self) -> None:
        """Remove the hidden folders that killed sessions left, then create the staging folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sweep(self.path.parent, self.name.run_id)
        self.path.mkdir()

    @contextmanager
    def open(self, name: str) -> Iterator[HashedFile]:
        """Open a new file in the folder for writing. The file is hashed while it is written.

        Args:
            name: the name of the new file.
        """
        with ThreadPoolExecutor(1) as thread:
            with open(self.path / name, "xb") as file:
                hashed = HashedFile(file, thread, self._algorithm)
                yield hashed
            linkable = name in self.links
            if not linkable:
                self._synchronise(self.path / name)  # while a slow hash is computed
            digest = self.digests[name] = hashed.digest()
            if linkable and not self.links.replace(self.path / name, name, digest):
                self._synchronise(self.path / name)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file."""
        with self.open(name) as file:
            file.write(text.encode())

    def add_written_files(self) -> None:
        """Start to hash and `fsync` the files that other functions, such as `save_pretrained`, wrote into the folder.

        The files must be complete.
        """
        allowed = self.path.stat().st_mode & 0o666  # safetensors creates files that only the owner can read
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and name not in self.digests and name not in self._reading:
                path.chmod(allowed)
                if name in self.links:
                    self._reading[name] = self._beside.submit(self._link_or_synchronise, path, name)
                else:
                    self._reading[name] = self._beside.submit(digest_of, path, self._algorithm)
                    self._synchronise(path)

    def _link_or_synchronise(self, path: Path, name: str) -> AnyDigest:
        digest = digest_of(path, self._algorithm)
        if not self.links.replace(path, name, digest):
            _synchronise(path)
        return digest

    def flush(self) -> None:
        """Wait until the files from `open` and `add_written_files` are hashed and on the disk."""
        self._wait()

    def _wait(self) -> None:
        waiting, self._synchronising = self._synchronising, []
        for file in waiting:
            file.result()
        self.digests |= {name: reading.result() for name, reading in self._reading.items()}
        self._reading = {}

    def _synchronise(self, path: Path) -> None:
        self._synchronising.append(self._beside.submit(_synchronise, path))

    def commit(self, facts: Mapping[str, Any], digests: Mapping[str, AnyDigest]) -> None:
        """Write the manifest, and rename the folder to its final name.

        The folder replaces an existing checkpoint with this name. If the method fails, the existing checkpoint stays.

        Args:
            facts: the entries of the manifest, without the list of files.
            digests: file name -> digest, for the files that are already hashed and synchronised to the disk. This
                method hashes and synchronises the other files in the folder.
        """
        self.digests |= digests
        self.add_written_files()
        self._wait()
        listed = {name: asdict(self.digests[name]) for name in sorted(self.digests)}
        self.write_text(MANIFEST, json.dumps({**facts, "files": listed}, indent=2) + "\n")
        for folder in (self.path, *filter(Path.is_dir, self.path.rglob("*"))):
            self._synchronise(folder)
        self._wait()
        self._beside.shutdown()
        aside = self.path.with_name(f"{self.name}-replaced")
        try:
            if self.target.exists():
                os.rename(self.target, aside)
            os.rename(self.path, self.target)
            synchronise([self.target.parent])
        except BaseException:
            if not self.path.exists():
                os.rename(self.target, self.path)
            if aside.exists():
                os.rename(aside, self.target)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def discard(self) -> None:
        """Delete the staging folder. Errors are ignored."""
        self._beside.shutdown(cancel_futures=True)
        shutil.rmtree(self.path, ignore_errors=True)


def synchronise(paths: Iterable[Path]) -> None:
    """Wait until the contents of files, and the file names in folders, are on the disk.

    To save time, the function calls `fsync` on several threads.
    """
    at_once(_synchronise, paths)


def _synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Removable(Protocol):
    """A checkpoint that can be deleted. `SavedCheckpoint` implements this protocol."""

    @property
    def path(self) -> Path:
        """The folder of the checkpoint."""

    @property
    def step(self) -> int:
        """The number of completed steps at the save."""

    @property
    def run_id(self) -> str:
        """The id of the run that wrote the checkpoint."""


def remove(checkpoint: Removable) -> None:
    """Delete a checkpoint: rename its folder to a hidden name, then delete the folder.

    Raises:
        OSError: if the folder cannot be renamed or deleted. After a failed rename, the checkpoint is unchanged. After a
            failed deletion, the folder has the hidden name.
    """
    aside = checkpoint.path.with_name(str(hidden_name(checkpoint.step, checkpoint.run_id, "-removed")))
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(checkpoint.path, aside)
    shutil.rmtree(aside)


def sweep(output_dir: Path, run_id: str) -> None:
    """Delete the hidden folders that killed sessions left in the output folder.

    A hidden folder is a checkpoint that a session was writing, replacing or deleting. A folder of this run is deleted
    unless another running process of this host uses it. A folder of another run is deleted only if its process ran on
    this host and has ended.

    First, `put_back` restores the final names of good checkpoints.

    Args:
        output_dir: the folder of the checkpoints.
        run_id: the id of this run, without characters other than letters and digits.
    """
    put_back(output_dir)
    for path, hidden in _abandoned(output_dir):
        if hidden.run_id == run_id or hidden.orphaned:
            shutil.rmtree(path, ignore_errors=True)


def put_back(output_dir: Path) -> None:
    """Rename good checkpoints with a hidden name back to their final names.

    To replace a checkpoint, a run first gives the old checkpoint a hidden name. If the run is killed at this moment,
    the old checkpoint keeps the hidden name. If another folder already has the final name, the function does not rename
    the old checkpoint. A checkpoint is good if `damage(full=False)` finds no problem.
    """
    for path, hidden in _abandoned(output_dir):
        target = path.with_name(folder_name(hidden.step))
        if hidden.aside == "-replaced" and not target.exists() and not damage(CheckpointFolder(path), full=False):
            os.rename(path, target)


def _abandoned(output_dir: Path) -> list[tuple[Path, Hidden]]:
    folders = sorted(output_dir.iterdir()) if output_dir.is_dir() else []
    named = [(path, parse_hidden(path)) for path in folders]
    return [(path, hidden) for path, hidden in named if hidden is not None and hidden.abandoned]
