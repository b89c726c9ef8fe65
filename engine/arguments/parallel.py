"""How several processes train one model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...events.errors import nearest
from ._base import Group, arg, must

STAGES = ("stage1", "stage2", "stage3")
"""The stages of `sharding`: optimizer states, gradients with them, weights with both."""


@dataclass(kw_only=True)
class ParallelArguments(Group):
    """How several processes train one model; unused where there is one."""

    ddp_backend: str | None = arg(
        None, "What processes talk through, such as 'nccl' or 'gloo'; None takes nccl on GPUs and gloo on CPUs."
    )
    ddp_timeout: int = arg(1800, "Seconds after which a process that waits for the others gives up.")
    ddp_find_unused_parameters: bool | None = arg(
        None, "Whether DDP looks for weights that got no gradient in a step, at some cost; None decides by the model."
    )
    ddp_bucket_cap_mb: int | None = arg(None, "MiB of gradients sent at once; None leaves it to PyTorch.")
    ddp_broadcast_buffers: bool | None = arg(
        None, "Whether buffers are copied from the first process before each forward; None leaves it to PyTorch."
    )
    ddp_static_graph: bool | None = arg(
        None, "Whether each step uses the same weights, which DDP then need not find out; None leaves it to PyTorch."
    )
    sharded_ddp: str | bool = arg(
        "",
        "How fairscale spreads optimizer states over processes: 'simple' (or true) gives each its share, '' does not.",
        choices=("", "simple", True, False),
    )

    sharding: str = arg(
        "", "The same in PaddleNLP's words: 'stage1', 'stage2' or 'stage3', the last two also with ' offload'."
    )
    sharding_degree: int = arg(
        -1, "Processes that share one copy of what `sharding` splits; -1 for all. It divides their number."
    )
    fsdp: str | bool | list[str] | None = arg(
        None, "Whether the weights too are split over the processes, by PyTorch's `fully_shard`."
    )
    fsdp_config: dict[str, Any] | str | None = arg(None, "Options for `fsdp`, as a dict or a JSON file.", json=True)
    deepspeed: dict[str, Any] | str | None = arg(
        None, "DeepSpeed's configuration, as a dict or a JSON file; it then does the steps.", json=True
    )

    @property
    def sharding_option(self) -> tuple[str, bool]:
        """`sharding` as its stage, empty for none, and whether it offloads."""
        words = self.sharding.split()
        return next((word for word in words if word != "offload"), ""), "offload" in words

    @property
    def way_to_shard(self) -> str:
        """What splits the work: 'fairscale', 'optimizer' (its state only), 'fsdp', 'deepspeed', or '' for nothing."""
        if self.sharded_ddp_option:
            return "fairscale" if self.sharded_ddp_option == "simple" else "fsdp"
        if self.sharding_option[0]:
            return "optimizer" if self.sharding_option[0] == "stage1" else "fsdp"
        return "fsdp" if self.fsdp else "deepspeed" if self.deepspeed not in (None, "") else ""

    @property
    def sharded_ddp_option(self) -> str:
        """`sharded_ddp` as its name: 'simple', or '' for none."""
        return "simple" if self.sharded_ddp is True else self.sharded_ddp or ""

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda seconds: seconds > 0, "give at least 1 second.", "ddp_timeout")
        yield from must(self, lambda size: size > 0, "give at least 1 MiB, or None.", "ddp_bucket_cap_mb")
        yield from must(self, lambda degree: degree == -1 or degree >= 1, "give -1, or 1 or more.", "sharding_degree")
        words = self.sharding.split()
        stages = [word for word in words if word != "offload"]
        for word in stages:
            if word not in STAGES:
                yield f"`sharding` is {self.sharding!r}{nearest(word, STAGES)} Known: {', '.join(STAGES)}, offload."
        if len(stages) > 1:
            yield f"`sharding` is {self.sharding!r}; it has one stage."
        if "offload" in words and (not stages or stages == ["stage1"]):
            yield f"`sharding` is {self.sharding!r}; offload goes with stage2 or stage3, as in 'stage2 offload'."
        for name in ("fsdp_config", "deepspeed"):
            value = getattr(self, name)
            if isinstance(value, str) and value and not os.path.isfile(os.path.expanduser(value)):
                yield f"`{name}` is {value!r}, which is neither JSON nor a file; give a dict, or a JSON file's path."
        if self.fsdp_config and not self.fsdp:
            yield "`fsdp_config` is given, and `fsdp` is not; give `fsdp=True`."
        ways = [name for name in ("sharded_ddp", "sharding", "fsdp", "deepspeed") if getattr(self, name)]
        if len(ways) > 1:
            given = " and ".join(f"`{name}={getattr(self, name)!r}`" for name in ways)
            yield f"{given} are different ways to split the same things; give one of them."
