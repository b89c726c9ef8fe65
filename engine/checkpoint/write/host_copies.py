"""Copy tensors to the CPU for a save. The next save reuses the memory, because allocating costs more than copying."""

from __future__ import annotations

import torch


class HostCopies:
    """Copies of tensors on the CPU, by name. A later copy under the same name, shape and dtype reuses the memory.

    The later copy overwrites the earlier copy. So the earlier copy must be on disk before the later copy is made.
    """

    def __init__(self) -> None:
        """Start without any memory."""
        self._kept: dict[str, torch.Tensor] = {}
        self._used: set[str] = set()

    def begin(self) -> None:
        """Start a new set of copies. Free the memory of names that the previous set did not use."""
        self._kept = {name: tensor for name, tensor in self._kept.items() if name in self._used}
        self._used = set()

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of a tensor, on the CPU."""
        self._used.add(name)
        kept = self._kept.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            pinned = tensor.is_cuda  # copies from a GPU into pinned memory are several times faster
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._kept[name] = kept
        return kept.copy_(tensor.detach())
