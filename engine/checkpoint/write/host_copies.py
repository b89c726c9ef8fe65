"""Copies of tensors in the host's memory, which is used again for the next: fresh memory costs more than copying."""

from __future__ import annotations

import torch


class HostCopies:
    """Copies tensors, each under a name; the memory of a name is used again for a tensor of the same form.

    What was copied before is overwritten then, so it must not be needed any more.
    """

    def __init__(self) -> None:
        """Begin without any memory."""
        self._kept: dict[str, torch.Tensor] = {}
        self._used: set[str] = set()

    def begin(self) -> None:
        """Begin a new set of copies; the memory of names that the last set did not use is let go."""
        self._kept = {name: tensor for name, tensor in self._kept.items() if name in self._used}
        self._used = set()

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of a tensor, on the host."""
        self._used.add(name)
        kept = self._kept.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            pinned = tensor.is_cuda  # a device copies into locked memory several times as fast
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._kept[name] = kept
        return kept.copy_(tensor.detach())
