"""Which process this is, and the device it computes on."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import torch

from ._base import Group, arg

LOG_LEVELS = ("debug", "info", "warning", "error", "critical", "passive")
"""What `log_level` takes."""


@dataclass(kw_only=True)
class ProcessArguments(Group):
    """Which process this is, and the device it computes on. The launcher (`torchrun`) says so in the environment."""

    use_cpu: bool = arg(False, "Whether to compute on the CPU even where there is a GPU.")
    local_rank: int = arg(
        -1, "Index of this process on its machine, from launchers that pass it as an option; LOCAL_RANK wins over it."
    )

    log_level: str = arg(
        "passive", "What the first process prints of the library's messages; 'passive' lets be.", choices=LOG_LEVELS
    )
    log_level_replica: str = arg("warning", "What the other processes print of them.", choices=LOG_LEVELS)
    log_on_each_node: bool = arg(True, "Whether the first process of every machine prints, rather than one in all.")
    save_on_each_node: bool = arg(
        False, "Whether the first process of every machine saves, for machines that share no disk; else one in all."
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
        """Whether this process prints: the first of all does, and with `log_on_each_node` that of each machine."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def own_log_level(self) -> str:
        """The one of `log_level` and `log_level_replica` that is this process's."""
        return self.log_level if self.should_log else self.log_level_replica

    def get_process_log_level(self) -> int:
        """The level of the library's messages in this process, as `logging` counts; 'passive' leaves it as it is."""
        if self.own_log_level == "passive":
            return logging.getLogger(__name__.partition(".")[0]).getEffectiveLevel()
        return int(getattr(logging, self.own_log_level.upper()))

    @property
    def should_save(self) -> bool:
        """Whether this process saves: the first of all does, and with `save_on_each_node` that of each machine."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0
