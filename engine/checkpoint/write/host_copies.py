"""Copies of tensors on the CPU for a save. The next save reuses the memory, because a new allocation takes longer."""

from __future__ import annotations

import torch


class HostCopies:
    """Copies of tensors on the CPU, by name. Two copies with the same name, shape and dtype use the same memory.

    The second copy overwrites the first copy. So the first copy must be on disk before the second copy is made.
    """

    def __init__(self) -> None:
        """Create the object. It has no copies at first."""
        self._kept: dict[str, torch.Tensor] = {}
        self._used: set[str] = set()

    def begin(self) -> None:
        """Prepare for the copies of a new save. Free the copies of tensors that the previous save did not contain."""
        self._kept = {name: tensor for name, tensor in self._kept.items() if name in self._used}
        self._used = set()

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of a tensor on the CPU.

        If the last copy with the same `name` has the same shape and dtype, overwrite this copy.
        """
        self._used.add(name)
        kept = self._kept.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            pinned = tensor.is_cuda  # copies from a GPU into pinned memory are several times faster
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._kept[name] = kept
        return kept.copy_(tensor.detach())
