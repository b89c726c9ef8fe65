"""Committing a checkpoint: everything is written under a name that nobody reads, and renamed when it is whole.

The order of what is done, so that a process may be killed, or the machine lose its power, at any point of it:

1. Every file is written and synchronised, and its size and hash are noted: of one while the next is written.
2. The manifest, which lists them, is written and synchronised, and so are the folders.
3. The folder is renamed to its name, and the folder it is in is synchronised.

Nothing is deleted under its own name: a folder is renamed away first, so that no half of one is ever found.
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
from typing import Any, BinaryIO

from ..format.files import MANIFEST, Checkpoint, Hidden, folder_name, hidden_name, parse_hidden
from ..format.hashing import AT_ONCE, Digest, Hashing, at_once, digest_of
from ..read.verify import damage


class HashedFile:
    """A file that is hashed as it is written, by a thread beside: both take about as long."""

    def __init__(self, file: BinaryIO, thread: Executor) -> None:
        """Write into `file`, and hash on `thread`, which must be a single one."""
        self._file = file
        self._hashing = Hashing(thread)

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes, which must stay as they are until the digest is taken."""
        self._hashing.add(data)
        self._file.write(data)

    def digest(self) -> Digest:
        """Return what was written until now."""
        return self._hashing.digest()


class Staging:
    """The hidden folder that a checkpoint is written into before it has its name."""

    def __init__(self, target: Path, name: Hidden) -> None:
        """Be the folder `name`, which becomes `target`."""
        self.target = target
        self.name = name
        self.path = target.with_name(str(name))
        self.digests: dict[str, Digest] = {}
        self._beside = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="staging")
        self._reading: dict[str, Future[Digest]] = {}
        self._synchronising: list[Future[None]] = []

    def create(self) -> None:
        """Make the folder, and remove what was left of others."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sweep(self.path.parent, self.name.run_id)
        self.path.mkdir()

    @contextmanager
    def open(self, name: str) -> Iterator[HashedFile]:
        """Open a new file for writing; it is hashed on the way.

        Args:
            name: its name in the folder.
        """
        with ThreadPoolExecutor(1) as thread:
            with open(self.path / name, "xb") as file:
                hashed = HashedFile(file, thread)
                yield hashed
            self._synchronise(self.path / name)
            self.digests[name] = hashed.digest()

    def write_text(self, name: str, text: str) -> None:
        """Write a file of text."""
        with self.open(name) as file:
            file.write(text.encode())

    def take_note(self) -> None:
        """Begin to read and synchronise the files that others put into the folder, and that are complete."""
        allowed = self.path.stat().st_mode & 0o666  # safetensors lets nobody but the owner read
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and name not in self.digests and name not in self._reading:
                path.chmod(allowed)
                self._reading[name] = self._beside.submit(digest_of, path)
                self._synchronise(path)

    def flush(self) -> None:
        """Wait until the files that are known here are on the disk."""
        self._wait()

    def _synchronise(self, path: Path) -> None:
        self._synchronising.append(self._beside.submit(_synchronise, path))

    def _wait(self) -> None:
        waiting, self._synchronising = self._synchronising, []
        for file in waiting:
            file.result()
        self.digests |= {name: reading.result() for name, reading in self._reading.items()}
        self._reading = {}

    def commit(self, facts: Mapping[str, Any], digests: Mapping[str, Digest]) -> None:
        """Write the manifest and give the folder its name. If that fails, everything is as it was before.

        A checkpoint that has the name already is replaced.

        Args:
            facts: what the manifest says beside the list of files.
            digests: the files that are known, and on the disk; those that others put into the folder are read here.
        """
        self.digests |= digests
        self.take_note()
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
        """Remove the folder."""
        self._beside.shutdown(cancel_futures=True)
        shutil.rmtree(self.path, ignore_errors=True)


def synchronise(paths: Iterable[Path]) -> None:
    """Wait until files, or the names in folders, are on the disk: all at once, which a disk does in the time of one."""
    at_once(_synchronise, paths)


def _synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint, under another name.

    Raises:
        OSError: if that fails; it is whole then, or has its name no more.
    """
    aside = checkpoint.path.with_name(str(hidden_name(checkpoint.step, checkpoint.run_id, "-removed")))
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(checkpoint.path, aside)
    shutil.rmtree(aside)


def sweep(output_dir: Path, run_id: str) -> None:
    """Remove what killed sessions left unfinished: that of this run, and of others whose process is known to be gone.

    What another run writes on another machine is not touched: nobody here knows whether it is alive.

    Args:
        output_dir: where its checkpoints are.
        run_id: the run, as it stands in the names of its hidden folders.
    """
    put_back(output_dir)
    for path, hidden in _abandoned(output_dir):
        if hidden.run_id == run_id or hidden.orphaned:
            shutil.rmtree(path, ignore_errors=True)


def put_back(output_dir: Path) -> None:
    """Give checkpoints their name back that were about to be replaced when the run was killed."""
    for path, hidden in _abandoned(output_dir):
        target = path.with_name(folder_name(hidden.step))
        if hidden.aside == "-replaced" and not target.exists() and not damage(path, full=False):
            os.rename(path, target)


def _abandoned(output_dir: Path) -> list[tuple[Path, Hidden]]:
    folders = sorted(output_dir.iterdir()) if output_dir.is_dir() else []
    named = [(path, parse_hidden(path)) for path in folders]
    return [(path, hidden) for path, hidden in named if hidden is not None and hidden.abandoned]
