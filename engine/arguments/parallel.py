"""Training on several ranks: backend, DDP options and sharding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..distributed.strategies import Strategy, sharded_ddp_words
from ._base import Group, arg, must
from ._sharding import FSDPOptions, read_fsdp_options


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ParallelArguments(Group):
    """Training on several ranks: backend, DDP options and sharding."""

    ddp_backend: str | None = arg(
        None, "Backend of torch.distributed, such as 'nccl' or 'gloo'. None: 'nccl' on GPUs, 'gloo' on CPUs."
    )
    ddp_timeout: int = arg(1800, "Seconds after which a rank stops waiting for the other ranks and raises an error.")
    ddp_find_unused_parameters: bool | None = arg(
        None,
        "Whether DDP searches in each step for weights without a gradient. The search costs time. None: True, unless "
        "the run recomputes activations.",
    )
    ddp_bucket_cap_mb: int | None = arg(None, "Size of DDP's gradient buckets, in MiB. None: PyTorch's default.")
    ddp_broadcast_buffers: bool | None = arg(
        None,
        "Whether DDP copies the buffers of rank 0 to all ranks before each forward. None: PyTorch's default.",
    )
    ddp_static_graph: bool | None = arg(
        None,
        "Whether the same weights get gradients in all steps. With True, DDP searches for unused weights only once. "
        "None: PyTorch's default.",
    )
    sharded_ddp: str | bool | list[str] = arg(
        "",
        "Way to shard, by its name in transformers 4. '': no sharding. 'simple' or True: shard the optimizer state "
        "with fairscale. 'zero_dp_2': the same as `sharding='stage2'`. 'zero_dp_3': the same as `sharding='stage3'`. "
        "Add ' offload' to keep the shards in host memory. Add ' fairscale' to use fairscale's "
        "FullyShardedDataParallel, on CUDA only. With ' fairscale', the whole model is gathered at once. Add ' "
        "auto_wrap' to gather each block by itself.",
        none=True,
    )

    sharding: str = arg(
        "",
        "Way to shard, by its name in PaddleNLP: 'stage1', 'stage2' or 'stage3'. '': no sharding. Add ' offload' to "
        "keep the shards in host memory. 'stage1' shards only the optimizer state, and does not work with ' "
        "offload'. 'stage2' and 'stage3' are modes of FSDP: between two steps, both keep only shards of the weights, "
        "the gradients and the optimizer state. 'stage2' keeps the gathered weights until backward is done. 'stage3' "
        "frees the gathered weights after forward, and gathers them again for backward.",
        none=True,
    )
    sharding_degree: int = arg(
        -1,
        "Number of ranks over which each tensor is sharded, such as the ranks of one machine. -1: all ranks. 1: no "
        "sharding. The world size must be a multiple of `sharding_degree`.",
        none=True,
    )
    fsdp: str | bool | list[str] | None = arg(
        None,
        "Shard weights, gradients and optimizer state with PyTorch's `fully_shard` (FSDP2). Pass True, or a text "
        "such as 'full_shard offload'. 'full_shard', the default, frees the gathered weights between forward and "
        "backward. 'shard_grad_op' keeps the gathered weights until backward is done. 'hybrid_shard' shards over the "
        "ranks of each machine, not over all ranks. 'offload' keeps the shards in host memory.",
    )
    fsdp_config: dict[str, Any] | str | None = arg(None, "Options of `fsdp`, as a dict or a JSON file.", json=True)
    deepspeed: dict[str, Any] | str | None = arg(
        None,
        "Configuration of DeepSpeed, as a dict or a JSON file. With a configuration, DeepSpeed runs backward and the "
        "updates.",
        json=True,
    )
    deepspeed_fill_sections: bool = arg(
        False,
        "If the sections `optimizer` and `scheduler` are absent in the configuration of DeepSpeed, fill them from "
        "the arguments. With False, the run builds the optimizer and the schedule itself. The filled section "
        "`optimizer` selects AdamW. The filled section `scheduler` selects WarmupDecayLR if `lr_scheduler_type` is "
        "'linear', and WarmupLR if `lr_scheduler_type` is 'constant_with_warmup'.",
    )

    @property
    def sharding_strategy(self) -> Strategy:
        """The strategy that the arguments select; `Strategy.DDP` if nothing is sharded."""
        return Strategy.selected_by(self)

    @property
    def way_to_shard(self) -> str:
        """The name of the sharding strategy; '' if nothing is sharded."""
        return self.sharding_strategy.row.name

    @property
    def sharding_option(self) -> tuple[str, bool]:
        """The stage in `sharding`, such as 'stage2' ('' for none), and whether `sharding` has the word 'offload'."""
        words = self.sharding.split()
        return next((word for word in words if word != "offload"), ""), "offload" in words

    @property
    def sharded_ddp_words(self) -> list[str]:
        """The words of `sharded_ddp` as a list, such as `['zero_dp_2', 'offload']`. True gives `['simple']`."""
        return sharded_ddp_words(self.sharded_ddp)

    @property
    def sharded_ddp_option(self) -> str:
        """The strategy in `sharded_ddp`: 'simple', 'zero_dp_2', 'zero_dp_3', or '' for none."""
        return next((word for word in self.sharded_ddp_words if word not in ("offload", "auto_wrap", "fairscale")), "")

    @property
    def fsdp_options(self) -> FSDPOptions:
        """The FSDP options in `sharded_ddp`, `sharding`, `fsdp` and `fsdp_config`, and their problems."""
        return read_fsdp_options(self.sharded_ddp, self.sharding, self.fsdp, self.fsdp_config)

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda seconds: seconds > 0, "set it to 1 second or more.", "ddp_timeout")
        yield from must(self, lambda size: size > 0, "set it to 1 MiB or more, or to None.", "ddp_bucket_cap_mb")
        yield from must(
            self, lambda degree: degree == -1 or degree >= 1, "set it to -1, or to 1 or more.", "sharding_degree"
        )
        absent = [*self._absent_files()]
        yield from absent or self.fsdp_options.problems
        if self.fsdp_config and not self.fsdp:
            yield "`fsdp_config` is set, but `fsdp` is not; set `fsdp=True`."
        given = [name for name in ("sharded_ddp", "sharding", "fsdp") if getattr(self, name)]
        given += ["deepspeed"] if self.deepspeed not in (None, "") else []  # an empty configuration counts too
        if len(given) > 1:
            values = " and ".join(f"`{name}={getattr(self, name)!r}`" for name in given)
            yield f"{values} select different sharding strategies; set only one of them."
        if self.sharding_degree >= 1 and given in ([], ["deepspeed"]):
            yield (
                f"`sharding_degree` is {self.sharding_degree!r}, but it applies to `sharding` and `fsdp` only; set one "
                "of them."
            )
        if self.sharding_degree >= 1 and self.sharded_ddp_option == "simple":
            yield (
                f"`sharding_degree` is {self.sharding_degree!r}, but `sharded_ddp='simple'` shards over all ranks; set "
                "`sharding='stage1'` instead, which shards the same."
            )
        if self.sharding_degree >= 1 and "fairscale" in self.sharded_ddp_words:
            yield (
                f"`sharding_degree` is {self.sharding_degree!r}, but `sharded_ddp={self.sharded_ddp!r}` shards over "
                "all ranks; remove the word 'fairscale'."
            )

    def _absent_files(self) -> Iterator[str]:
        for name in ("fsdp_config", "deepspeed"):
            value = getattr(self, name)
            if isinstance(value, str) and value and not os.path.isfile(os.path.expanduser(value)):
                yield f"`{name}` is {value!r}, which is neither JSON nor a file; set it to a dict or to a JSON file."
