"""Whether a checkpoint is what was written: a folder in, a list of what is wrong with it out."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from safetensors import safe_open

from ....events.errors import CheckpointError
from ..format.files import ARGUMENTS, FOREIGN_ARGUMENTS, MANIFEST, MODEL, OURS, PREFIX, STATE
from ..format.hashing import Digest, at_once, digest_of
from ..format.manifest import has, inside, read_manifest

INDEX = f"{MODEL}.index.json"
PICKLED = "pytorch_model.bin"
"""What transformers' weights are in where they are not in safetensors: tensors, pickled."""


@dataclass(frozen=True)
class Check:
    """How a checkpoint is checked."""

    read: Callable[[Path], Digest] = digest_of
    """Reads a file, on one of several threads, and returns its size and hash."""
    of_run: tuple[str, ...] = ()
    """Patterns of the files without which a run can go on if `resume_partial` allows it."""
    partial: bool = False
    """Whether it does, and those need not be there."""

    def lacks(self, name: str) -> str:
        """Return what to say of a file that is not there; an empty string where it need not be."""
        begins_anew = any(fnmatch(name, pattern) for pattern in self.of_run)
        if not begins_anew:
            return f"{name} is missing"
        return "" if self.partial else f"{name} is missing (`resume_partial=True` begins anew what was in it)"


STRICT = Check()
"""Everything that was written is there."""


def problems(folder: Path, *, full: bool, check: Check = STRICT) -> list[str]:
    """Return what is wrong with a checkpoint, a sentence each; nothing if it is good.

    A checkpoint without a list of its files, as other libraries and the first version of this one write them, is good
    if the files are there that any checkpoint must have, and those that can be checked without such a list are whole.

    Args:
        folder: the checkpoint.
        full: whether the contents of the files are compared too, which reads them all; else their sizes only.
        check: how else it is checked.
    """
    if folder.name.startswith(f".tmp-{PREFIX}"):
        return ["it was never finished"]
    return damage(folder, full=full, check=check)


def damage(folder: Path, *, full: bool, check: Check = STRICT) -> list[str]:
    """Return what is wrong with the contents of a folder, whatever its name; see `problems`."""
    if not folder.is_dir():
        return ["there is no such folder"]
    if links := _links_out(folder):
        return links
    if not (folder / MANIFEST).exists() and (own := _of_ours(folder)):
        return [f"{MANIFEST} is missing, though {own} is there: nothing says what was written"]
    try:
        files = read_manifest(folder).get("files") if (folder / MANIFEST).exists() else None
    except CheckpointError as error:
        return [str(error)]
    if files is None:
        return _missing(folder) or (_unreadable(folder) if full else [])
    listed = {name: Digest(entry["size"], entry["sha256"]) for name, entry in files.items()}
    found = {name: _misfit(folder, name, digest, check) for name, digest in listed.items()}
    if full:
        whole = [name for name, problem in found.items() if not problem]
        found.update(zip(whole, at_once(lambda name: _changed(folder, name, listed[name], check), whole)))
    return [problem for problem in found.values() if problem]


def _of_ours(folder: Path) -> str:
    """Return the name of a file in a folder that only this library writes; an empty string if there is none."""
    names = sorted(path.name for path in folder.iterdir())
    # Some keep the arguments of transformers as JSON beside them.
    foreign = {ARGUMENTS} if FOREIGN_ARGUMENTS in names else set()
    return next((name for name in names if name not in foreign and any(fnmatch(name, own) for own in OURS)), "")


def leads_out(folder: Path, name: str) -> str:
    """Return where a file of a folder is a link to, if that is outside of the folder; else an empty string."""
    path = folder / name
    try:
        return "" if path.resolve().is_relative_to(folder.resolve()) else str(path.readlink())
    except (OSError, RuntimeError):  # a link to itself
        return str(path)


def _links_out(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() and (where := leads_out(folder, name)):
            found.append(f"{name} is a link to {where}, outside of the folder; copy the folder with what it links to")
    return found


def _misfit(folder: Path, name: str, written: Digest, check: Check) -> str:
    """Return what is wrong with a file that is seen without reading it; an empty string if nothing is."""
    path = folder / name
    try:
        if not path.is_file():
            return f"{name} is no file" if path.exists() else check.lacks(name)
        size = path.stat().st_size
    except OSError as error:
        return f"{name} cannot be read: {error}"
    return "" if size == written.size else f"{name} has {size} bytes, and {written.size} were written"


def _changed(folder: Path, name: str, written: Digest, check: Check) -> str:
    """Read a file, and return in what it is not what was written; an empty string if it is."""
    try:
        found = check.read(folder / name)
    except FileNotFoundError:
        return check.lacks(name)
    except OSError as error:
        return f"{name} cannot be read: {error}"
    if found.sha256 == written.sha256:
        return ""
    return f"{name} is not what was written: its SHA-256 is {found.sha256[:12]}..., not {written.sha256[:12]}..."


def _missing(folder: Path) -> list[str]:
    """Return what is wrong with a checkpoint that has no list of its files."""
    found = []
    try:
        if not isinstance(json.loads((folder / STATE).read_text(encoding="utf-8")), dict):
            found.append(f"{STATE} is no state of a run")
    except FileNotFoundError:
        found.append(f"{STATE} is missing")
    except (OSError, ValueError, RecursionError) as error:
        found.append(f"{STATE} cannot be read: {error}")
    try:
        weights = weight_files(folder)
    except (OSError, ValueError, RecursionError) as error:
        return [*found, f"{index_of(folder).name} cannot be read: {error}"]
    for name in weights:
        if not (folder / name).is_file():
            found.append(f"{name} is missing")
        elif not (folder / name).stat().st_size:
            found.append(f"{name} is empty")
    return found


def _unreadable(folder: Path) -> list[str]:
    """Return which files of a checkpoint that has no hashes were cut short, or are not what their own sums say."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".pt", ".pth") or path.match("pytorch_model*.bin"):
            try:
                _read_through(path)
            except Exception as error:  # of many kinds, none of which is more than that it cannot be read
                found.append(f"{path.name} is damaged: {error}")
    return found


def _read_through(path: Path) -> None:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np"):
            return  # its header fits its size; it has no sums
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK"  # or in torch's earlier format, which has no sums either
    if zipped:
        with zipfile.ZipFile(path) as archive:
            if bad := archive.testzip():
                raise ValueError(f"{bad} in it is not what was written")


def index_of(folder: Path) -> Path:
    """Return where the index of a checkpoint's weights is if they are in several files."""
    pickled = f"{PICKLED}.index.json"
    others = any(has(folder, name) for name in (INDEX, MODEL, PICKLED))
    return folder / (pickled if has(folder, pickled) and not others else INDEX)


def weight_files(folder: Path) -> list[str]:
    """Return the names of the files that a checkpoint's weights are in, or should be.

    Raises:
        OSError: if the index of the files cannot be read.
        ValueError: if it is no index, or names a file outside of the folder.
    """
    path = index_of(folder)
    if not has(folder, path.name):
        return [PICKLED] if has(folder, PICKLED) and not has(folder, MODEL) else [MODEL]
    index = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        raise ValueError("it has no 'weight_map'")
    names = sorted({str(name) for name in index["weight_map"].values()})
    for name in names:
        if not inside(name):
            raise ValueError(f"it names {name!r}, which is outside of the folder")
    return names
