"""Compute the least size of a checkpoint, check the free disk space, and explain disk errors."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import nn

from ....events.errors import CheckpointError
from ...api.console import FULL
from ..format.files import readable_size
from ..format.sharded import Files
from ..format.subclasses import consists_of_tensors
from .disk_errors import errno_of, is_disk_error, reason_of_disk_error

_PROBE = 4096
"""The bytes that `check_writable` writes as a test."""
_ANOTHER = "Set `output_dir` to a folder in which this user can create files."

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def bytes_needed(model: nn.Module, tensors: Files, texts: Mapping[str, str]) -> int:
    """Return the smallest possible size of a checkpoint, in bytes. If less is free on the disk, the save is refused.

    Frozen weights and buffers do not count, because some saves do not write them. For example, a save of an adapter
    writes only the adapter. The manifest and the names of tensors do not count either.

    Args:
        model: the model. Its trained weights count.
        tensors: the other tensors of the checkpoint and their metadata, by file.
        texts: the text files of the checkpoint, by name.
    """
    trained = sum(bytes_of(weight) for weight in model.parameters() if weight.requires_grad)
    written = sum(bytes_of(tensor) for encoded, _ in tensors.values() for tensor in encoded.values())
    metadata = [text for _, described in tensors.values() for text in described.values()]
    return trained + written + sum(len(text.encode()) for text in (*metadata, *texts.values()))


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the number of bytes that a tensor has on this rank.

    For a tensor that consists of other tensors, such as an 8-bit optimizer state, the result is the sum over these
    tensors.
    """
    if consists_of_tensors(tensor):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        parts = [getattr(tensor, name) for name in names]
        return sum(bytes_of(part) for part in parts if isinstance(part, torch.Tensor))  # a shard also has a mesh
    return int(tensor.numel() * tensor.element_size())


def bytes_free(folder: Path) -> int | None:
    """Return the number of free bytes on the disk of a folder; None if they are unknown. The folder need not exist."""
    existing = next((parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()), None)
    try:
        usage = shutil.disk_usage(existing or folder)
    except OSError:
        return None
    return usage.free if usage.total else None


def check_space(needed: int, folder: Path) -> None:
    """Raise an error if the disk of `folder` has too little space for a save.

    Raises:
        OSError: if fewer than `needed` bytes are free.
    """
    free = bytes_free(folder)
    if free is not None and free < needed:
        raise OSError(errno.ENOSPC, "There is not enough space left on the device")


def check_writable(folder: Path, *, leave: bool) -> None:
    """Write a file into a folder and remove it, to check that the folder is writable.

    A check of permissions and free space alone does not find every reason for which a write fails.

    Args:
        folder: the folder, existing or not.
        leave: whether the folders that this function creates stay. If False, the function removes them.

    Raises:
        CheckpointError: if the file cannot be written. The message has the reason and the remedy.
    """
    created: list[Path] = []
    probe = folder / f".tmp-probe-{os.getpid()}"
    try:
        created = [] if leave else [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with open(probe, "wb") as file:
            file.write(bytes(_PROBE))
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:  # ValueError: the name has a null byte
        number = getattr(error, "errno", None)
        remedy = _remedy(number, full=False) if number in (*FULL, *_FORBIDDEN) else _ANOTHER
        raise CheckpointError(f"output_dir={str(folder)!r} cannot be written to: {error}. {remedy}") from error
    finally:
        for path in (probe, *created):
            with suppress(OSError, ValueError):
                path.unlink() if path is probe else path.rmdir()


@contextmanager
def explained(step: int, needed: int, folder: Path) -> Iterator[None]:
    """Turn a disk error in the `with` block into an error that names the checkpoint, the folder and the remedy.

    Args:
        step: the step of the checkpoint.
        needed: the least number of bytes that the checkpoint needs.
        folder: the folder that the checkpoint folder is written into.

    Raises:
        CheckpointError: if the block raises an error that `is_disk_error` recognises, or a CheckpointError. A
            CheckpointError is raised unchanged.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        if not is_disk_error(error):
            raise
        free = bytes_free(folder)
        available = "an unknown amount" if free is None else readable_size(free)
        number = errno_of(error)
        blocks = "Files take whole blocks of the disk. " if number == errno.ENOSPC and (free or 0) >= needed else ""
        raise CheckpointError(
            f"The checkpoint of step {step} cannot be written to {folder}: {reason_of_disk_error(error)}. "
            f"It needs at least {readable_size(needed)}, and {available} is free. {blocks}"
            "Earlier checkpoints are unchanged. " + _remedy(number, full=free is not None and free < needed)
        ) from error


def _remedy(number: int | None, *, full: bool) -> str:
    if number == errno.EFBIG and not full:
        return "Raise the limit of the size of a file: see `ulimit -f`."
    if full or number in FULL:
        return "Free some space, or keep fewer checkpoints with `save_total_limit` or `Checkpoint(keep=Keep(...))`."
    if number in _FORBIDDEN:
        return "Allow this user to write there, or set another `output_dir`."
    return "Set `on_save_error='warn'` to continue training and try again when the next checkpoint is due."
