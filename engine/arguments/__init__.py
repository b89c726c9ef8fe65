"""The arguments of a training run, a group per file. This page is their table of contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ._base import Group, IntervalStrategy, SaveStrategy, refusal
from ._checks import normalised, unknown_names, with_defaults, wrong_types
from ._conflicts import conflicts
from ._names import METRIC_SCHEDULES, OPTIMIZERS, SCHEDULES, OptimizerNames, SchedulerType
from .aliases import ALIASES
from .batches import BatchArguments
from .best_model import BestModelArguments
from .data import DataArguments
from .duration import DurationArguments
from .evaluation import EvaluationArguments
from .hf_compat import Familiar, ParallelMode
from .hub import HubArguments, HubStrategy
from .keywords import Spelling
from .model import ModelArguments
from .optimizer import OptimizerArguments
from .output import OutputArguments
from .parallel import ParallelArguments
from .precision import PrecisionArguments
from .process import ProcessArguments
from .reporting import ReportingArguments
from .reproducibility import ReproducibilityArguments
from .saving import SavingArguments
from .schedule import ScheduleArguments
from .script import ScriptArguments
from .serialization import Record

__all__ = [
    "ALIASES",
    "OPTIMIZERS",
    "SCHEDULES",
    "HubStrategy",
    "IntervalStrategy",
    "OptimizerNames",
    "ParallelMode",
    "SaveStrategy",
    "SchedulerType",
    "TrainingArguments",
]


# A dataclass takes its fields from the last base to the first, so the reference page shows the groups in this order
# from the bottom up: where the run writes, what it does, how long it is, ...
@dataclass(kw_only=True)
class TrainingArguments(
    Record,
    Familiar,
    HubArguments,
    ParallelArguments,
    ProcessArguments,
    ReproducibilityArguments,
    DataArguments,
    BestModelArguments,
    SavingArguments,
    EvaluationArguments,
    ReportingArguments,
    PrecisionArguments,
    ModelArguments,
    ScheduleArguments,
    OptimizerArguments,
    BatchArguments,
    DurationArguments,
    ScriptArguments,
    OutputArguments,
    metaclass=Spelling,
):
    """Everything there is to say about a run, under the names and with the defaults of Transformers' Trainer.

    Values stay as they were written; what follows from them is a property: `device`, `train_batch_size`, `given`, ...
    A call that gets something wrong raises one `ArgumentError`, which lists all of it.
    """

    def __post_init__(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """Bring every value into its one spelling, check them all, and fill in what follows from them.

        Apart from `__post_init__`, so that what a subclass does there is done once, and not by every setter again.
        """
        for field in fields(TrainingArguments):
            setattr(self, field.name, normalised(field, getattr(self, field.name)))
        if problems := [*self.problems()]:
            raise refusal(problems)
        # The one place where fields are filled in: callbacks and scripts written for Transformers read them, and expect
        # what they would find there. `given` still tells them from what the user wrote.
        self.eval_steps = self.eval_steps or None
        self.do_eval = self.do_eval or self.eval_strategy != IntervalStrategy.NO
        for name, value in self.fallbacks().items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def fallbacks(self) -> dict[str, Any]:
        """What fields left out stand for, where other fields decide that: name -> value."""
        keeps_best = self.load_best_model_at_end or self.save_strategy == SaveStrategy.BEST
        watched = "loss" if keeps_best or self.lr_scheduler_type in METRIC_SCHEDULES else None
        metric = self.metric_for_best_model or watched
        return {
            "do_eval": self.eval_strategy != IntervalStrategy.NO,
            "eval_steps": self.logging_steps if self.eval_strategy == IntervalStrategy.STEPS else None,
            "metric_for_best_model": watched,
            "greater_is_better": None if metric is None else not metric.endswith("loss"),
        }

    def problems(self) -> Iterator[str]:
        """Everything wrong with the values; those of the wrong type count as their defaults in the other checks."""
        wrong = wrong_types(self, TrainingArguments)
        sound = with_defaults(self, wrong)
        yield from wrong.values()
        yield from unknown_names(sound, TrainingArguments)
        for group in reversed(TrainingArguments.__bases__):
            if issubclass(group, Group):
                yield from group.problems(sound)
        yield from conflicts(sound)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """`to_dict()` for tables of hyperparameters: numbers, strings and booleans stay, all else becomes a string."""
        values = {**self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: v if type(v) in (bool, int, float, str) else str(v) for name, v in values.items()}
