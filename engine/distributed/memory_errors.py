"""Tell errors of a full memory from other errors."""

from __future__ import annotations

SIGNS = (" out of memory", "can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")
"""Texts in the out-of-memory errors of CUDA, of the CPU allocator and of cuDNN."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an out-of-memory error of torch."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory is full: an error of torch, or Python's `MemoryError`.

    Code that reads a file must not report such an error as damage to the file.
    """
    return isinstance(error, MemoryError) or is_out_of_memory(error)
