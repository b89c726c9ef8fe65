"""Which process this is, and the device it computes on."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from ._base import Group, arg


@dataclass(kw_only=True)
class ProcessArguments(Group):
    """Which process this is, and the device it computes on. The launcher (`torchrun`) says so in the environment."""

    use_cpu: bool = arg(False, "Whether to compute on the CPU even where there is a GPU.")
    local_rank: int = arg(
        -1, "Index of this process on its machine, from launchers that pass it as an option; LOCAL_RANK wins over it."
    )

    @property
    def world_size(self) -> int:
        """Processes that train together."""
        return int(os.environ.get("WORLD_SIZE", 1))

    @property
    def process_index(self) -> int:
        """Index of this process among all, from 0."""
        return int(os.environ.get("RANK", 0))

    @property
    def local_process_index(self) -> int:
        """Index of this process among those on its machine, from 0."""
        return int(os.environ.get("LOCAL_RANK", max(self.local_rank, 0)))

    @property
    def device(self) -> torch.device:
        """Where this process computes: its GPU, or the CPU if there is none or `use_cpu` is set."""
        if self.use_cpu or not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_process_index)

    @property
    def n_gpu(self) -> int:
        """GPUs this process drives: one, or none on the CPU."""
        return int(self.device.type == "cuda")

    @property
    def should_log(self) -> bool:
        """Whether this process prints and reports: the first one on each machine does."""
        return self.local_process_index == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes what is written once: the first one of all does."""
        return self.process_index == 0
