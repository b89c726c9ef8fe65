"""The rank and the device of this process, and its settings for logs and checkpoints."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ._base import Group, arg

LOG_LEVELS = ("debug", "info", "warning", "error", "critical", "passive")
"""Values of `log_level`."""

LAUNCHER_VARIABLES = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0}
"""Environment variable of the launcher -> its smallest valid value."""

_REMEDY = "start the program with a launcher, such as torchrun --nproc_per_node=N, or unset the variables."


def _number(name: str, default: int) -> int:
    """Read a number from an environment variable of the launcher. Return `default` if the variable has no number.

    `launch_problems` reports a value that is not a number.
    """
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default


def launch_problems() -> Iterator[str]:
    """Yield each problem of the launcher's environment variables."""
    found = {name: os.environ[name] for name in LAUNCHER_VARIABLES if name in os.environ}
    invalid = [name for name, value in found.items() if not value.isdecimal() or int(value) < LAUNCHER_VARIABLES[name]]
    for name in invalid:
        least = LAUNCHER_VARIABLES[name]
        yield f"The environment has {name}={found[name]!r}, which is not a number of {least} or more; {_REMEDY}"
    if invalid or int(found.get("WORLD_SIZE", 1)) == 1:
        return
    world = int(found["WORLD_SIZE"])
    if "RANK" not in found:
        yield f"The environment has WORLD_SIZE={world} and no RANK, the number of this process; {_REMEDY}"
    for name in ("RANK", "LOCAL_RANK"):
        if int(found.get(name, 0)) >= world:
            yield (
                f"The environment has {name}={found[name]} and WORLD_SIZE={world}, but ranks count from 0 to "
                f"{world - 1}; {_REMEDY}"
            )


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ProcessArguments(Group):
    """The device of this process, and which processes log and save. The launcher sets the rank in the environment."""

    use_cpu: bool = arg(False, "Train on the CPU even if there is a GPU.")
    local_rank: int = arg(
        -1,
        "Rank of this process on its machine, for launchers that pass it as an option. The environment variable "
        "LOCAL_RANK overrides it. -1: not set.",
        none=True,
    )

    log_level: str = arg(
        "passive",
        "Log level of trainbus on the main process. 'passive' does not change the level.",
        choices=LOG_LEVELS,
    )
    log_level_replica: str = arg("warning", "Log level of trainbus on the other processes.", choices=LOG_LEVELS)
    log_on_each_node: bool = arg(
        True,
        "Whether the first process of each machine logs as a main process. False: only rank 0 logs as a main process.",
    )
    save_on_each_node: bool = arg(
        False,
        "Whether the first process of each machine saves, for machines without a shared disk. False: only rank 0 "
        "saves.",
    )

    def problems(self) -> Iterator[str]:
        wrong = [*launch_problems()]
        yield from wrong
        if not wrong and self.world_size > 1 and self.device.type == "cuda":
            gpus, index = torch.cuda.device_count(), self.device.index
            if index >= gpus:
                yield (
                    f"The environment has LOCAL_RANK={index}, but this process sees {gpus} GPU(s); start one process "
                    "per GPU of the machine, and make all GPUs visible to each process. Or make one GPU visible to "
                    "each process, with CUDA_VISIBLE_DEVICES."
                )

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return _number("WORLD_SIZE", 1)

    @property
    def process_index(self) -> int:
        """Rank of this process, from 0."""
        return _number("RANK", 0)

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine, from 0."""
        return int(os.environ.get("LOCAL_RANK", max(self.local_rank, 0)))

    @property
    def device(self) -> torch.device:
        """The device of this process: its GPU, or the CPU if there is no GPU.

        `use_cpu=True` and the environment variable `ACCELERATE_USE_CPU` also select the CPU. Some schedulers set
        CUDA_VISIBLE_DEVICES so that each process sees only one GPU. The device is then this GPU.
        """
        on_cpu = self.use_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
        if on_cpu or not torch.cuda.is_available():
            return torch.device("cpu")
        index = self.local_process_index
        alone = index > 0 and "CUDA_VISIBLE_DEVICES" in os.environ and torch.cuda.device_count() == 1
        return torch.device("cuda", 0 if alone else index)

    @property
    def n_gpu(self) -> int:
        """Number of GPUs that this process uses: 1 if a launcher started it, else all visible GPUs; 0 on the CPU."""
        if self.device.type != "cuda":
            return 0
        launched = self.world_size > 1 or "LOCAL_RANK" in os.environ or self.local_rank >= 0
        return 1 if launched else max(1, torch.cuda.device_count())

    @property
    def should_log(self) -> bool:
        """Whether this process logs: rank 0, or the first process of each machine if `log_on_each_node` is set."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def own_log_level(self) -> str:
        """The log level of this process: `log_level` if `should_log` is True, else `log_level_replica`."""
        return self.log_level if self.should_log else self.log_level_replica

    def get_process_log_level(self) -> int:
        """Return the log level of this process as a number of the module `logging`, such as 20 for INFO.

        If the level is 'passive', return the current level of the logger of this library.
        """
        if self.own_log_level == "passive":
            return logging.getLogger(__name__.partition(".")[0]).getEffectiveLevel()
        return int(getattr(logging, self.own_log_level.upper()))

    @property
    def should_save(self) -> bool:
        """Whether this process saves: rank 0, or the first process of each machine if `save_on_each_node` is set."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0
