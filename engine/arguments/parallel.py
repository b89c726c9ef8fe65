"""How several processes train one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, arg, must


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
    sharded_ddp: str | bool = arg(
        "",
        "How fairscale spreads optimizer states over processes: 'simple' (or true) gives each its share, '' does not.",
        choices=("", "simple", True, False),
    )

    @property
    def sharded_ddp_option(self) -> str:
        """`sharded_ddp` as its name: 'simple', or '' for none."""
        return "simple" if self.sharded_ddp is True else self.sharded_ddp or ""

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda seconds: seconds > 0, "give at least 1 second.", "ddp_timeout")
        yield from must(self, lambda size: size > 0, "give at least 1 MiB, or None.", "ddp_bucket_cap_mb")
