"""Which process this is, and the device it computes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ._base import Group, arg

LOG_LEVELS = ("debug", "info", "warning", "error", "critical", "passive")
"""What `log_level` takes."""

VARIABLES = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0}
"""What a launcher writes into the environment, and what that is least."""


def launch_problems() -> Iterator[str]:
    """What is wrong with what the environment says of this process and the others."""
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    unread = [name for name, value in found.items() if not value.isdecimal() or int(value) < VARIABLES[name]]
    for name in unread:
        yield f"The environment has {name}={found[name]!r}, which is no number of {VARIABLES[name]} or more; {_REMEDY}"
    if unread or int(found.get("WORLD_SIZE", 1)) == 1:
        return
    world = int(found["WORLD_SIZE"])
    if "RANK" not in found:
        yield f"The environment has WORLD_SIZE={world} and no RANK, which of them this process is; {_REMEDY}"
    for name in ("RANK", "LOCAL_RANK"):
        if int(found.get(name, 0)) >= world:
            yield f"The environment has {name}={found[name]} and WORLD_SIZE={world}: they are counted from 0; {_REMEDY}"


_REMEDY = "start the program with a launcher, as torchrun --nproc_per_node=N, or unset the variables of an earlier one."


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

    def problems(self) -> Iterator[str]:
        wrong = [*launch_problems()]
        yield from wrong
        if not wrong and self.world_size > 1 and self.device.type == "cuda":
            gpus, index = torch.cuda.device_count(), self.local_process_index
            if index >= gpus:
                yield (
                    f"The environment has LOCAL_RANK={index}, and this process sees {gpus} GPU(s): start as many as "
                    "there are on the machine, and let each see all of them."
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
        on_cpu = self.use_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
        if on_cpu or not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_process_index)

    @property
    def n_gpu(self) -> int:
        """GPUs this process drives: one if a launcher started it, else all that are visible; none on the CPU."""
        if self.device.type != "cuda":
            return 0
        launched = self.world_size > 1 or "LOCAL_RANK" in os.environ or self.local_rank >= 0
        return 1 if launched else max(1, torch.cuda.device_count())

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
