"""Checks for conflicts between arguments of different groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from ._base import IntervalStrategy, SaveStrategy
from ._names import METRIC_SCHEDULES, SchedulerType


class ComparedArguments(Protocol):
    """The arguments that `conflicts` compares. `TrainingArguments` has all of these arguments."""

    eval_strategy: IntervalStrategy | str
    eval_steps: float | None
    logging_steps: float
    save_strategy: SaveStrategy | str
    load_best_model_at_end: bool
    metric_for_best_model: str | None
    lr_scheduler_type: SchedulerType | str
    gradient_accumulation_steps: int
    bf16: bool
    fp16: bool
    fp16_opt_level: str
    sharded_ddp: Any
    ddp_static_graph: bool | None

    @property
    def way_to_shard(self) -> str:
        """The name of the strategy that shards the training; empty if nothing is sharded."""

    @property
    def sharded_ddp_option(self) -> str:
        """The strategy that `sharded_ddp` names; empty if it names none."""


def conflicts(args: ComparedArguments) -> Iterator[str]:
    """Yield each conflict between arguments of different groups."""
    if args.eval_strategy == IntervalStrategy.NO:
        remedy = "needs evaluations, but `eval_strategy` is 'no'; set it to 'steps' or 'epoch'."
        listed = "If `Evaluate(...)` is in your callbacks, add `KeepBest(...)` to them instead of this argument."
        if args.load_best_model_at_end:
            yield f"`load_best_model_at_end=True` {remedy} {listed}"
        if args.save_strategy == SaveStrategy.BEST:
            yield f"`save_strategy='best'` {remedy} {listed}"
        if args.lr_scheduler_type in METRIC_SCHEDULES:
            yield f"`lr_scheduler_type={str(args.lr_scheduler_type)!r}` {remedy}"
    elif args.save_strategy == SaveStrategy.BEST and not (args.metric_for_best_model or args.load_best_model_at_end):
        yield ("`save_strategy='best'` needs `metric_for_best_model`, which finds the best; set it, such as to 'loss'.")
    if args.eval_strategy == IntervalStrategy.STEPS and not args.eval_steps and not args.logging_steps:
        yield "`eval_strategy` is 'steps', but `eval_steps` and `logging_steps` are both 0; set `eval_steps`."
    if args.fp16_opt_level == "O2" and (args.bf16 or args.fp16) and args.way_to_shard:
        yield (
            "`fp16_opt_level='O2'` keeps full float32 copies of the weights on every rank, and does not work with "
            "sharding; use `fsdp=True, fsdp_config={'mixed_precision': 'bf16'}`, which computes in half precision from "
            "sharded float32 weights."
        )
    if args.bf16 and args.sharded_ddp_option == "simple":
        yield "`sharded_ddp='simple'` does not work with `bf16`; use `sharding='stage1'`, which shards the same state."
    if args.bf16 and args.way_to_shard == "fairscale_fsdp":
        yield (
            f"`sharded_ddp={args.sharded_ddp!r}` does not work with `bf16`; remove the word 'fairscale', so that "
            "PyTorch's FSDP2 shards the model."
        )
    if args.ddp_static_graph and args.gradient_accumulation_steps > 1:
        yield (
            "`ddp_static_graph=True` needs one batch per step, but `gradient_accumulation_steps` is "
            f"{args.gradient_accumulation_steps}; remove one of the two."
        )
