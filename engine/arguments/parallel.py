"""How several processes train one model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._base import Group, arg, must
from ._sharding import Splitting, read_splitting, sharded_ddp_words


@dataclass(kw_only=True)
class ParallelArguments(Group):
    """How several processes train one model."""

    ddp_backend: str | None = arg(
        None, "What processes talk through, such as 'nccl' or 'gloo'; None takes nccl on GPUs and gloo on CPUs."
    )
    ddp_timeout: int = arg(1800, "Seconds after which a process that waits for the others gives up.")
    ddp_find_unused_parameters: bool | None = arg(
        None,
        "Whether DDP looks for weights that got no gradient in a step, at some cost; None does, unless activations are "
        "recomputed.",
    )
    ddp_bucket_cap_mb: int | None = arg(None, "MiB of gradients sent at once; None leaves it to PyTorch.")
    ddp_broadcast_buffers: bool | None = arg(
        None, "Whether buffers are copied from the first process before each forward; None leaves it to PyTorch."
    )
    ddp_static_graph: bool | None = arg(
        None, "Whether each step uses the same weights, which DDP then need not find out; None leaves it to PyTorch."
    )
    sharded_ddp: str | bool | list[str] = arg(
        "",
        "How the work is spread over processes: 'simple' (or true) gives each its share of the optimizer states, by "
        "fairscale; 'zero_dp_2' and 'zero_dp_3' split the weights too, as `sharding` stage2 and stage3 do, both also "
        "with ' offload' and ' auto_wrap', and with ' fairscale', on CUDA, by fairscale's FullyShardedDataParallel, of "
        "the model as a whole, or with ' auto_wrap' of its blocks; '' does neither.",
    )

    sharding: str = arg(
        "",
        "What is split over processes: 'stage1' the optimizer states, 'stage2' the weights too, except from forward to "
        "backward, 'stage3' also there; the last two also with ' offload' to the host's memory.",
    )
    sharding_degree: int = arg(
        -1,
        "Processes that share one copy of what is split, as those of a machine; -1 for all, 1 to split nothing. It "
        "divides their number.",
    )
    fsdp: str | bool | list[str] | None = arg(
        None,
        "Whether the weights too are split over the processes, by PyTorch's `fully_shard`; true, or words as "
        "'full_shard', 'shard_grad_op', 'hybrid_shard', 'offload'.",
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
        """What splits the work; '' for nothing.

        'fairscale' and 'fairscale_fsdp' (its two ways), 'optimizer' (its state only), 'fsdp' or 'deepspeed'.
        """
        if self.deepspeed not in (None, ""):
            return "deepspeed"
        if self.sharded_ddp_option == "simple":
            return "fairscale"
        if "fairscale" in self.sharded_ddp_words:
            return "fairscale_fsdp"
        if self.sharding_degree == 1:
            return ""
        if self.sharding_option[0] == "stage1":
            return "optimizer"
        return "fsdp" if self.sharded_ddp_option or self.sharding_option[0] or self.fsdp else ""

    @property
    def sharded_ddp_words(self) -> list[str]:
        """`sharded_ddp` as its words."""
        return sharded_ddp_words(self.sharded_ddp)

    @property
    def sharded_ddp_option(self) -> str:
        """`sharded_ddp` as its name: 'simple', 'zero_dp_2', 'zero_dp_3', or '' for none."""
        return next((word for word in self.sharded_ddp_words if word not in ("offload", "auto_wrap", "fairscale")), "")

    @property
    def splitting(self) -> Splitting:
        """How the weights are split where `way_to_shard` is 'fsdp'."""
        return read_splitting(self.sharded_ddp, self.sharding, self.fsdp, self.fsdp_config)

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda seconds: seconds > 0, "give at least 1 second.", "ddp_timeout")
        yield from must(self, lambda size: size > 0, "give at least 1 MiB, or None.", "ddp_bucket_cap_mb")
        yield from must(self, lambda degree: degree == -1 or degree >= 1, "give -1, or 1 or more.", "sharding_degree")
        absent = [*self._absent_files()]
        yield from absent or self.splitting.problems
        if self.fsdp_config and not self.fsdp:
            yield "`fsdp_config` is given, and `fsdp` is not; give `fsdp=True`."
        ways = [name for name in ("sharded_ddp", "sharding", "fsdp") if getattr(self, name)]
        ways += ["deepspeed"] if self.deepspeed not in (None, "") else []  # one with nothing in it is one too
        if len(ways) > 1:
            given = " and ".join(f"`{name}={getattr(self, name)!r}`" for name in ways)
            yield f"{given} are different ways to split the same things; give one of them."
        if self.sharding_degree >= 1 and ways in ([], ["deepspeed"]):
            yield (
                f"`sharding_degree` is {self.sharding_degree!r}: over so many processes `sharding` or `fsdp` splits, "
                "and neither is given; give one of them."
            )
        if self.sharding_degree >= 1 and self.sharded_ddp_option == "simple":
            yield (
                f"`sharding_degree` is {self.sharding_degree!r}, and `sharded_ddp='simple'` splits over all processes; "
                "give `sharding='stage1'`, which splits the same."
            )
        if self.sharding_degree >= 1 and "fairscale" in self.sharded_ddp_words:
            yield (
                f"`sharding_degree` is {self.sharding_degree!r}, and `sharded_ddp={self.sharded_ddp!r}` splits over "
                "all processes; leave the word 'fairscale' out."
            )

    def _absent_files(self) -> Iterator[str]:
        for name in ("fsdp_config", "deepspeed"):
            value = getattr(self, name)
            if isinstance(value, str) and value and not os.path.isfile(os.path.expanduser(value)):
                yield f"`{name}` is {value!r}, which is neither JSON nor a file; give a dict, or a JSON file's path."
