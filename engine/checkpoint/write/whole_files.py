"""Write files outside of a checkpoint: a write that fails leaves the earlier files, and its error says what to do."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ....events.errors import CheckpointError
from ...api.console import FULL
from ..format.files import (
    ADAPTER,
    BESIDE_ADAPTERS,
    EXTRA_STATE,
    INDEX,
    MODEL,
    PICKLED_INDEX,
    PICKLED_MODEL,
    readable_size,
)
from .disk_errors import errno_of, is_disk_error, reason_of_disk_error
from .disk_space import bytes_free

_CARD = "README.md"
_STEM, _SUFFIX = MODEL.split(".")


@contextmanager
def disk_errors_explained(what: str, folder: Path) -> Iterator[None]:
    """Turn a disk error in the `with` block into an error that names the file, the folder and the remedy.

    Args:
        what: the thing that the block writes, such as `The model`.
        folder: the folder that the block writes into.

    Raises:
        CheckpointError: if the block raises an error that says that a file could not be written.
    """
    try:
        yield
    except Exception as error:
        if not _is_from_disk(error):
            raise
        free = bytes_free(folder)
        available = "" if free is None else f" {readable_size(free)} is free."
        raise CheckpointError(
            f"{what} cannot be written to {folder}: {reason_of_disk_error(error)}.{available} {_remedy(error)}"
        ) from error


def _is_from_disk(error: Exception) -> bool:
    """Return whether an error is a disk error, and not an error of the network or of a missing file."""
    if isinstance(error, (ConnectionError, TimeoutError, FileNotFoundError)):
        return False
    return is_disk_error(error) and (not isinstance(error, OSError) or type(error).__module__ == "builtins")


def _remedy(error: Exception) -> str:
    number = errno_of(error)
    if number == errno.EFBIG:
        return "Raise the limit of the size of a file: see `ulimit -f`."
    if number is None or number in FULL:
        return "Free some space, or choose another folder."
    return "Choose a folder in which this user can create files, or check the disk."


@contextmanager
def whole_file(path: Path, what: str) -> Iterator[Path]:
    """Return a temporary path to write to. After the `with` block, the file replaces `path`.

    If the block fails, an existing file `path` stays. The folder is created if necessary. If `path` is a link, the file
    behind the link is replaced, and the link stays. If `path` is not a regular file, such as a link to `/dev/null`, the
    block writes to it directly.

    Args:
        path: the path of the file.
        what: the name of the file in errors, such as `The trainer state`.

    Raises:
        CheckpointError: if the file cannot be written.
    """
    target = path.resolve()
    unfinished = target.with_name(f".{os.getpid()}.{target.name}")
    with disk_errors_explained(what, path.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (target.is_file() or target.is_dir()) and target.exists():
            yield path
            return
        try:
            yield unfinished
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def whole_model(folder: Path) -> Iterator[Path]:
    """Return a temporary folder to write a model to. After the `with` block, its files move to `folder`.

    The move also deletes outdated weights of an earlier model. If the block fails, nothing moves, and the files of the
    earlier model stay. So no program loads a mixture of two models.

    The model card (`README.md`) is copied to the temporary folder first. Some libraries extend an existing card.

    Args:
        folder: the folder of the model. It is created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".tmp-model-", dir=folder))
    try:
        if (folder / _CARD).is_file():
            shutil.copy2(folder / _CARD, unfinished)
        yield unfinished
        _move(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move(source: Path, folder: Path) -> None:
    """Move all files and links of a folder to another folder, and delete weights of an earlier model there.

    The index moves last. Until then, no program finds the new weights through it.
    """
    files = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file() or path.is_symlink()]
    new = {path.as_posix() for path in files}
    for path in _replaced(folder, new):
        if path.name not in new:
            path.unlink(missing_ok=True)
    for path in sorted(files, key=lambda path: path.name == INDEX):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        _replace(source / path, folder / path)


def _replace(source: Path, target: Path) -> None:
    """Move a file. If the folder of the target is a link to another file system, copy the file first."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with whole_file(target, "The model") as unfinished:
            shutil.copy2(source, unfinished)


def _replaced(folder: Path, new: set[str]) -> Iterator[Path]:
    """Yield the paths of weights that a save of a model replaces or deletes.

    A save of an adapter does not replace the weights of a whole model in the same folder.
    """
    yield folder / EXTRA_STATE
    if any(Path(name).name == ADAPTER for name in new):
        yield folder / BESIDE_ADAPTERS
    if any(name in (MODEL, INDEX, PICKLED_MODEL, PICKLED_INDEX) for name in new):
        yield from (folder / MODEL, folder / INDEX, *folder.glob(f"{_STEM}-*-of-*.{_SUFFIX}"))
