"""Recognize errors that say that the memory is full."""

from __future__ import annotations

import errno

SIGNS = (" out of memory", "can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")
"""Texts in the out-of-memory errors of CUDA, of the CPU allocator and of cuDNN."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an out-of-memory error of torch."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory is full.

    The error may come from torch, from Python (`MemoryError`), or from the operating system (`ENOMEM`). Code that
    explains errors must raise such an error unchanged, because an explanation such as "the file is damaged" is wrong.
    """
    return isinstance(error, MemoryError) or is_out_of_memory(error) or _cannot_map(error)


def _cannot_map(error: BaseException) -> bool:
    code = error.errno if isinstance(error, OSError) else None
    return code == errno.ENOMEM or f"(os error {errno.ENOMEM})" in str(error)  # safetensors has the number in the text
