"""What no group of arguments can see alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ._base import IntervalStrategy, SaveStrategy
from ._names import METRIC_SCHEDULES

if TYPE_CHECKING:
    from . import TrainingArguments


def conflicts(args: TrainingArguments) -> Iterator[str]:
    """The contradictions between arguments of different groups."""
    if args.eval_strategy == IntervalStrategy.NO:
        remedy = "needs evaluations, and `eval_strategy` is 'no'; give 'steps' or 'epoch'."
        if args.load_best_model_at_end:
            yield f"`load_best_model_at_end=True` {remedy}"
        if args.save_strategy == SaveStrategy.BEST:
            yield f"`save_strategy='best'` {remedy}"
        if args.lr_scheduler_type in METRIC_SCHEDULES:
            yield f"`lr_scheduler_type={str(args.lr_scheduler_type)!r}` {remedy}"
    if args.eval_strategy == IntervalStrategy.STEPS and not args.eval_steps and not args.logging_steps:
        yield "`eval_strategy` is 'steps', and `eval_steps` and `logging_steps` are both 0; give `eval_steps`."
    if args.fp16_opt_level == "O2" and (args.bf16 or args.fp16) and args.way_to_shard:
        yield (
            "`fp16_opt_level='O2'` keeps whole float32 copies of the weights on every process, and goes with nothing "
            "that splits them; give `fsdp=True, fsdp_config={'mixed_precision': 'bf16'}`, which computes in half "
            "precision from split float32 weights."
        )
    if args.bf16 and args.sharded_ddp_option == "simple":
        yield "`sharded_ddp='simple'` is not supported with bf16; give `sharding='stage1'`, which splits the same."
    if args.bf16 and args.way_to_shard == "fairscale_fsdp":
        yield (
            f"`sharded_ddp={args.sharded_ddp!r}` is not supported with bf16; leave the word 'fairscale' out, and "
            "PyTorch's FSDP2 splits the same."
        )
    if args.ddp_static_graph and args.gradient_accumulation_steps > 1:
        yield (
            f"`ddp_static_graph=True` goes with steps of one batch, and `gradient_accumulation_steps` is "
            f"{args.gradient_accumulation_steps}; leave out one of the two."
        )
