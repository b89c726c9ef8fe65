"""Functions that say whether this process uses CUDA, or can use it. They do not start CUDA."""

from __future__ import annotations

import torch


def uses_cuda() -> bool:
    """Return whether this process has started CUDA. False in a fork of such a process, where CUDA does not work."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call] # torch has no type for it


def can_use_cuda() -> bool:
    """Return whether this process can use CUDA: it sees a GPU, and is not a fork of a process that uses CUDA."""
    return torch.cuda.is_available() and not torch.cuda._is_in_bad_fork()
