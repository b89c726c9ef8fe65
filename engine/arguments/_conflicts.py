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
