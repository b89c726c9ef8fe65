"""The sharding strategies: one row for each way to train on several GPUs.

To add a strategy, add three things: a row in `Strategy`, the callback that this row names, and a test. A row has the
arguments that select the strategy, the memory formula, the command that starts the ranks, and the limits of the
strategy. All other code reads the row: `TrainingArguments.sharding_strategy`, `trainbus plan` and the composition of
callbacks. A test compares the tables of docs/scaling.md and docs/scaling/strategies.md with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from . import memory_formulas
from .memory_formulas import MemoryEstimate
from .variants import (
    TORCHRUN,
    ddp_variants,
    deepspeed_variants,
    fairscale_variants,
    fsdp_variants,
    no_variants,
    optimizer_variants,
)
from .workload import Variant, Workload


class ShardingArguments(Protocol):
    """The training arguments that select a strategy. `TrainingArguments` implements this protocol."""

    sharded_ddp: str | bool | list[str]
    sharding: str
    sharding_degree: int
    fsdp: str | bool | list[str] | None
    deepspeed: dict[str, Any] | str | None


@dataclass(frozen=True)
class Usage:
    """A documented use of a strategy: a row of the first table in docs/scaling.md."""

    title: str
    """The title of the row."""
    arguments: tuple[str, ...]
    """Equivalent spellings, as keywords of `TrainingArguments`; empty if no argument is needed."""
    when: str
    """When to use the strategy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyRow:
    """One row of the table of strategies."""

    name: str
    """The value of `TrainingArguments.way_to_shard`; empty if nothing is sharded."""
    callback: str
    """The class of the callback that shards the training, as a path below `trainbus`. The class method
    `from_arguments` builds the callback."""
    usages: tuple[Usage, ...]
    """The ways to select the strategy, and when to use each."""
    memory: Callable[[Variant, Workload], MemoryEstimate]
    """The memory formula: a function that returns the memory of a variant for a workload."""
    variants: Callable[[Workload], list[Variant]]
    """A function that returns the variants of the strategy for a workload: the lines of `trainbus plan`."""
    arguments: tuple[str, ...] = ()
    """The names of the arguments that select the strategy with any value that is set."""
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the words that select the strategy. One of these words in the value is enough."""
    integration: str = ""
    """The name in the table of integrations, if the strategy needs another package."""
    extra: str = ""
    """What to `pip install` for the strategy; empty if torch is enough."""
    launch: str = TORCHRUN
    """The command that starts the ranks on one machine."""
    single_process: bool = False
    """Whether the strategy also works in a single process."""
    takes_degree: bool = False
    """Whether the argument `sharding_degree` applies. With `sharding_degree=1` nothing is sharded, and DDP trains."""
    limits: str = ""
    """The limits of the strategy, for the documentation."""

    @property
    def selecting_arguments(self) -> tuple[str, ...]:
        """The names of the arguments that may select the strategy."""
        return (*self.words, *self.arguments)

    def is_selected(self, args: ShardingArguments) -> bool:
        """Return whether arguments select this strategy."""
        if self.takes_degree and args.sharding_degree == 1:
            return False
        return any(_is_set(getattr(args, name)) for name in self.arguments) or any(
            {*_words_of_argument(args, name)} & {*words} for name, words in self.words.items()
        )


def _is_set(value: Any) -> bool:
    return bool(value) or isinstance(value, dict)  # an empty DeepSpeed configuration selects DeepSpeed too


def words_of(value: Any) -> list[str]:
    """Return the words of the value of an argument, in lower case. None, True and False have no words."""
    if value in (None, False, True):
        return []
    words = value.split() if isinstance(value, str) else [str(getattr(word, "value", word)) for word in value]
    return [word.lower() for word in words]


def sharded_ddp_words(value: Any) -> list[str]:
    """Return the words of the argument `sharded_ddp`, in lower case: `["simple"]` for True, `[]` for None and False."""
    return ["simple"] if value is True else words_of(value)


def _words_of_argument(args: ShardingArguments, name: str) -> list[str]:
    read = sharded_ddp_words if name == "sharded_ddp" else words_of
    return read(getattr(args, name))


class Strategy(Enum):
    """The ways to train on several GPUs.

    The first strategy needs the smallest change to a program. `trainbus plan` keeps this order.
    """

    DDP = StrategyRow(
        name="",
        callback="callbacks.parallel.ddp.DDP",
        usages=(Usage("DDP", (), "The model, its gradients and its optimizer state fit one GPU."),),
        memory=memory_formulas.data_parallel,
        variants=ddp_variants,
        single_process=True,
    )
    OPTIMIZER = StrategyRow(
        name="optimizer",
        callback="callbacks.parallel.sharded_optimizer.ShardedOptimizer",
        usages=(
            Usage(
                "Stage 1",
                ("sharding='stage1'",),
                "The weights and gradients fit one GPU, but not together with the optimizer state.",
            ),
        ),
        words={"sharding": ("stage1",)},
        memory=memory_formulas.sharded_optimizer,
        variants=optimizer_variants,
        takes_degree=True,
        limits="All trained weights must have the same dtype. Optimizers with train and eval modes "
        "(`schedule_free_*`) are refused.",
    )
    FSDP = StrategyRow(
        name="fsdp",
        callback="callbacks.parallel.fsdp.FSDP",
        usages=(
            Usage(
                "Stage 2",
                ("sharding='stage2'", "sharded_ddp='zero_dp_2'", "fsdp='shard_grad_op'"),
                "The weights fit one GPU, but not together with the gradients.",
            ),
            Usage(
                "Hybrid",
                ("sharding='stage3', sharding_degree=8", "fsdp='hybrid_shard'"),
                "One machine holds the model, and the network between machines is slow.",
            ),
            Usage(
                "Stage 3",
                ("sharding='stage3'", "sharded_ddp='zero_dp_3'", "fsdp='full_shard'"),
                "The weights do not fit one GPU.",
            ),
            Usage(
                "Stage 3 in half precision",
                ("fsdp='full_shard', fsdp_config={'mixed_precision': 'bf16'}",),
                "You train with `bf16`, and memory is scarce. Weights are gathered in bfloat16. So autocast makes no "
                "bfloat16 copies of float32 weights.",
            ),
            Usage(
                "Stage 3 with offloading",
                ("sharding='stage3 offload'", "sharded_ddp='zero_dp_3 offload'", "fsdp='full_shard offload'"),
                "All GPUs together are too small. The CPU computes the updates.",
            ),
        ),
        arguments=("fsdp",),
        words={"sharding": ("stage2", "stage3"), "sharded_ddp": ("zero_dp_2", "zero_dp_3")},
        memory=memory_formulas.fully_sharded,
        variants=fsdp_variants,
        takes_degree=True,
        limits="In each step, the forward must use the same parameters on all ranks. `auto_find_batch_size`, "
        "`bf16_full_eval` and `fp16_full_eval` are refused.",
    )
    FAIRSCALE = StrategyRow(
        name="fairscale",
        callback="integrations.fairscale.sharded_ddp.ShardedDDP",
        usages=(
            Usage(
                "fairscale",
                ("sharded_ddp='simple'",),
                "A script already uses stage 1 of fairscale. The package is from 2022.",
            ),
        ),
        words={"sharded_ddp": ("simple",)},
        memory=memory_formulas.fairscale_optimizer,
        variants=fairscale_variants,
        integration="sharded_ddp",
        extra="trainbus[sharded]",
        limits="`bf16` is refused. All trained weights must have the same dtype, and gradients must be dense.",
    )
    FAIRSCALE_FSDP = StrategyRow(
        name="fairscale_fsdp",
        callback="integrations.fairscale.fsdp.FairscaleFSDP",
        usages=(
            Usage(
                "fairscale's FSDP",
                ("sharded_ddp='zero_dp_3 fairscale auto_wrap'", "sharded_ddp='zero_dp_2 fairscale'"),
                "A script needs the class of fairscale: `zero_dp_3` for stage 3, `zero_dp_2` for stage 2.",
            ),
        ),
        words={"sharded_ddp": ("fairscale",)},
        memory=memory_formulas.fully_sharded,
        variants=no_variants,
        integration="fairscale_fsdp",
        extra="trainbus[sharded]",
        limits="CUDA only. `bf16`, `EMA` and optimizers that use the shape of a weight, such as Adafactor, are "
        "refused.",
    )
    DEEPSPEED = StrategyRow(
        name="deepspeed",
        callback="integrations.deepspeed.callback.DeepSpeed",
        usages=(
            Usage(
                "DeepSpeed",
                ("deepspeed={'zero_optimization': {'stage': 2}}",),
                "You have a configuration of [DeepSpeed](deepspeed.md).",
            ),
        ),
        arguments=("deepspeed",),
        memory=memory_formulas.deepspeed,
        variants=deepspeed_variants,
        integration="deepspeed",
        extra="trainbus[deepspeed]",
        single_process=True,
        limits="See [DeepSpeed](../deepspeed.md).",
    )

    @property
    def row(self) -> StrategyRow:
        """The value of this enum member: the `StrategyRow` that describes the strategy."""
        row: StrategyRow = self.value
        return row

    @classmethod
    def named(cls, name: str) -> Strategy:
        """Return the strategy with the name `name`, such as `fsdp`. The name must exist."""
        return next(strategy for strategy in cls if strategy.row.name == name)

    @classmethod
    def selected_by(cls, args: ShardingArguments) -> Strategy:
        """Return the strategy that the arguments select; `DDP` if the arguments select no sharding.

        If the arguments match several strategies, the last match in the order of the enum is selected. For example,
        `sharded_ddp='zero_dp_3 fairscale'` matches `FSDP` and `FAIRSCALE_FSDP`, so it selects `FAIRSCALE_FSDP`.
        """
        return [strategy for strategy in cls if strategy is cls.DDP or strategy.row.is_selected(args)][-1]


def variants(workload: Workload) -> list[Variant]:
    """Return the variants of all strategies that a workload can use.

    The first variant needs the smallest change to a program. With one GPU, the only variant is a single process. With
    several GPUs and half-precision weights (`halves_weights`), the only variant is DDP.
    """
    if workload.gpus == 1 or workload.halves_weights:  # sharded strategies keep their own copies of the weights
        return ddp_variants(workload)
    return [variant for strategy in Strategy for variant in strategy.row.variants(workload)]
