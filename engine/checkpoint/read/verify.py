"""Verification: compare a checkpoint folder with its manifest, and return the problems, one sentence each."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from safetensors import safe_open

from ....events.errors import CheckpointError
from ...distributed.memory_errors import lacks_memory
from ..format.files import (
    ADAPTER,
    ARGUMENTS,
    HF_ARGUMENTS,
    INDEX,
    MANIFEST,
    MODEL,
    NATIVE,
    PICKLED_ADAPTER,
    PICKLED_MODEL,
    PREFIX,
    STATE,
)
from ..format.folder import CheckpointFolder
from ..format.hashing import Algorithm, AnyDigest, at_once, digest_of, digest_of_bytes
from ..format.manifest import inside

Read = Callable[[Path, Algorithm], AnyDigest]
"""A function that reads a file and returns its digest."""


@dataclass(frozen=True)
class Check:
    """Settings of a verification: which files may be missing, and whether verified tensors stay in memory."""

    optional: tuple[str, ...] = ()
    """Patterns of the optional files: files that may be missing if `resume_partial` is set."""
    partial: bool = False
    """Whether `resume_partial` is set, so that the optional files may be missing."""
    keep_tensors: bool = False
    """Whether the verified tensors of the training state stay in memory until the run loads them."""

    def missing(self, name: str) -> str:
        """Return the error text for the missing file `name`; an empty string if the file may be missing."""
        if not any(fnmatch(name, pattern) for pattern in self.optional):
            return f"{name} is missing"
        return "" if self.partial else f"{name} is missing (`resume_partial=True` starts this part fresh)"


STRICT = Check()
"""The default settings: every file in the manifest must exist, and no tensor stays in memory."""


_GONE = "there is no such folder"


def problems(path: Path, *, full: bool, check: Check = STRICT) -> list[str]:
    """Verify the checkpoint in a folder. Return its problems, one sentence each; an empty list if it has none.

    Args:
        path: the folder.
        full: whether to read and hash every file. If False, only existence and sizes are checked.
        check: the files that may be missing.
    """
    return problems_of(CheckpointFolder(path), full=full, check=check)


def problems_of(folder: CheckpointFolder, *, full: bool, check: Check = STRICT, read: Read = digest_of) -> list[str]:
    """Verify a checkpoint. Return its problems, one sentence each; empty if it is good.

    If no manifest lists the files, as in checkpoints of other libraries, the function makes two checks instead:

    - The checkpoint has a trainer state and weights.
    - Only with `full=True`: each `.safetensors` file has a correct header, and each zip file of torch has correct
      checksums.

    Args:
        folder: the checkpoint.
        full: whether to read and hash every file. If False, only existence and sizes are checked.
        check: the files that may be missing.
        read: a function that reads a file and returns its digest. Several threads call the function.
    """
    if folder.path.name.startswith(f".tmp-{PREFIX}"):
        return ["its write was not finished"]
    return damage(folder, full=full, check=check, read=read)


def damage(folder: CheckpointFolder, *, full: bool, check: Check = STRICT, read: Read = digest_of) -> list[str]:
    """Return the problems of a checkpoint as `problems_of` does, but do not check the name of the folder.

    If the name begins with `.tmp-checkpoint`, `problems_of` reports only that the write was not finished.
    """
    try:
        return _damage(folder, full, check, read)
    except FileNotFoundError:  # another run has deleted the folder in the meantime
        if folder.path.is_dir():
            raise
        return [_GONE]


def _damage(folder: CheckpointFolder, full: bool, check: Check, read: Read) -> list[str]:
    path = folder.path
    if not path.is_dir():
        return [_GONE]
    if links := _links_to_outside(path):  # before any file is read
        return links
    try:
        manifest = folder.manifest
    except CheckpointError as error:
        return [str(error)]
    if manifest is None and (name := _native_file(path)):
        return [f"{MANIFEST} is missing, but {name} exists: without it, the files cannot be verified"]
    listed = folder.digests
    if listed is None:
        return _missing(folder) or (_unreadable(folder) if full else [])
    found = {name: _wrong_size(path, name, digest, check) for name, digest in listed.items()}
    if full:
        whole = [name for name, problem in found.items() if not problem]
        hashed = at_once(lambda name: _changed(folder, name, listed[name], check, read), whole)
        found.update(zip(whole, hashed))
    return [problem for problem in found.values() if problem]


def _native_file(path: Path) -> str:
    """Return the name of a file that only trainbus writes; an empty string if the folder `path` has no such file.

    A folder with such a file must also have a manifest. If the manifest is missing, the checkpoint is damaged.
    """
    names = sorted(file.name for file in path.iterdir())
    # Some users keep the arguments of transformers as JSON beside the pickled ones.
    shared = {ARGUMENTS} if HF_ARGUMENTS in names else set()
    return next((name for name in names if name not in shared and any(fnmatch(name, own) for own in NATIVE)), "")


def link_target_outside(path: Path, name: str) -> str:
    """Return the link target of the file `name` if it is outside of the folder `path`; otherwise an empty string.

    The link may be the file itself, or a folder above the file. If links form a cycle, return `path / name`.
    """
    file = path / name
    try:
        target = file.resolve()
        if target.is_relative_to(path.resolve()):
            return ""
        return str(file.readlink() if file.is_symlink() else target)  # a folder above the file may be the link
    except (OSError, RuntimeError):  # the link leads to itself
        return str(file)


def _links_to_outside(path: Path) -> list[str]:
    found = []
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_symlink() and (target := link_target_outside(path, name)):
            found.append(f"{name} is a link to {target}, outside of the folder; copy the files into the folder")
    return found


def _wrong_size(path: Path, name: str, written: AnyDigest, check: Check) -> str:
    """Check that `name` is a file with the size in the digest `written`. The content is not read.

    Return the problem, or an empty string. If `check` allows a missing file, a missing file also gives an empty string.
    """
    file = path / name
    try:
        if not file.is_file():
            return f"{name} is not a file" if file.exists() else check.missing(name)
        size = file.stat().st_size
    except OSError as error:
        return f"{name} cannot be read: {error}"
    return "" if size == written.size else f"{name} has {size} bytes, but {written.size} were written"


def _changed(folder: CheckpointFolder, name: str, written: AnyDigest, check: Check, read: Read) -> str:
    """Return the problem if a file cannot be read, or if its digest is not the digest `written`; else an empty
    string."""
    try:
        # The trainer state and the arguments are parsed from the bytes that are hashed here.
        if name == STATE:
            found = digest_of_bytes(folder.state_bytes, type(written))
        elif name == ARGUMENTS:
            found = digest_of_bytes(folder.argument_bytes, type(written))
        else:
            found = read(folder.path / name, type(written))
    except FileNotFoundError:
        return check.missing(name)
    except OSError as error:
        return f"{name} cannot be read: {error}"
    if found == written:
        return ""
    now, then = (getattr(digest, written.key)[:12] for digest in (found, written))
    return f"{name} has changed since it was written: its {written.title} is {now}..., not {then}..."


def _missing(folder: CheckpointFolder) -> list[str]:
    """Check a checkpoint that has no list of its files, such as one of transformers. Return the problems.

    The trainer state must be a JSON object. The files of the weights must exist and not be empty.
    """
    found = []
    try:
        if not isinstance(json.loads(folder.state_bytes.decode("utf-8")), dict):
            found.append(f"{STATE} does not contain the state of a run")
    except FileNotFoundError:
        found.append(f"{STATE} is missing")
    except (OSError, ValueError, RecursionError) as error:
        found.append(f"{STATE} cannot be read: {error}")
    try:
        weights = weight_files(folder)
    except (OSError, ValueError, RecursionError) as error:
        return [*found, f"{index_name(folder)} cannot be read: {error}"]
    for name in weights:
        if not (folder.path / name).is_file():
            found.append(f"{name} is missing")
        elif not (folder.path / name).stat().st_size:
            found.append(f"{name} is empty")
    return found


def _unreadable(folder: CheckpointFolder) -> list[str]:
    """Read the tensor files of a checkpoint that has no list of its files. Return a problem for each damaged file."""
    names = {file.name for file in folder.path.iterdir() if file.suffix in (".safetensors", ".pt", ".pth")}
    names |= {file.name for file in folder.path.glob("pytorch_model*.bin")}
    # An index may name files in subfolders. Adapters other than the default one are in subfolders.
    names |= {*weight_files(folder), *adapter_names(folder)}
    found = []
    for name in sorted(names):
        try:
            _read_through(folder.path / name)
        except Exception as error:  # parsers raise many types, and each means that the file cannot be read
            if lacks_memory(error):
                raise
            found.append(f"{name} is damaged: {error}")
    return found


def _read_through(path: Path) -> None:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np"):
            return  # the header fits the size of the file; there are no checksums
    with open(path, "rb") as file:
        start = file.read(2)
    if start == b"PK":
        with zipfile.ZipFile(path) as archive:
            if bad := archive.testzip():
                raise ValueError(f"the checksum of {bad} in it does not match")
    elif start[:1] != b"\x80":  # a pickle: the legacy format of torch, which has no checksums
        raise ValueError("it does not begin as a file of torch" if start else "it is empty")


def adapter_names(folder: CheckpointFolder) -> list[str]:
    """Return the names of the adapter files in a checkpoint, such as `adapter_model.safetensors`."""
    found = [
        path for name in (ADAPTER, PICKLED_ADAPTER) for path in folder.matching(name) + folder.matching(f"*/{name}")
    ]
    return sorted(path.relative_to(folder.path).as_posix() for path in found)


def index_name(folder: CheckpointFolder) -> str:
    """Return the name of the index file, which maps weights to files.

    The index file exists only if the weights are in several files.
    """
    pickled = f"{PICKLED_MODEL}.index.json"
    others = any(folder.has(name) for name in (INDEX, MODEL, PICKLED_MODEL))
    return pickled if folder.has(pickled) and not others else INDEX


def weight_files(folder: CheckpointFolder) -> list[str]:
    """Return the names of the files with the weights of a checkpoint, including missing files.

    Raises:
        OSError: if the index cannot be read.
        ValueError: if the index is invalid, or names a file outside of the folder.
    """
    name = index_name(folder)
    if not folder.has(name):
        whole = [model for model in (MODEL, PICKLED_MODEL) if folder.has(model)][:1]
        return whole or adapter_names(folder) or [MODEL]
    index = json.loads((folder.path / name).read_text(encoding="utf-8"))
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        raise ValueError("it has no 'weight_map'")
    names = sorted({str(name) for name in index["weight_map"].values()})
    for name in names:
        if not inside(name):
            raise ValueError(f"it names {name!r}, which is outside of the folder")
    return names
