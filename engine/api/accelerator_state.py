"""AcceleratorState: the object `accelerator.state`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

PROCESSES = (
    "device", "distributed_type", "is_last_process", "is_local_main_process", "is_main_process",
    "local_main_process_first", "local_process_index", "main_process_first", "mixed_precision", "num_processes",
    "print", "process_index", "use_distributed", "wait_for_everyone",
)  # fmt: skip
"""The attributes and methods that both `Accelerator` and `AcceleratorState` have."""


@dataclass(frozen=True)
class AcceleratorState:
    """The object `accelerator.state`, with the attributes of accelerate's `AcceleratorState`.

    The attributes in `PROCESSES`, such as `num_processes`, are read from `accelerator`. `deepspeed_plugin`,
    `fsdp_plugin` and `parallelism_config` are None, because callbacks shard the model.
    """

    accelerator: Any = field(repr=False)
    """The `Accelerator`, which has the attributes in `PROCESSES`."""
    deepspeed_plugin: None = None
    """Always None. The options of DeepSpeed are fields of the callback `DeepSpeed`."""
    fsdp_plugin: None = None
    """Always None. The options of FSDP are fields of the callback `FSDP`."""
    parallelism_config: None = None
    """Always None."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in PROCESSES:
                raise AttributeError(f"`accelerator.state` has no {name!r}. It has {', '.join(PROCESSES)}.")
            return getattr(self.accelerator, name)
