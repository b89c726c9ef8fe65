"""`TrainingArguments`: the arguments of a training run. Each file of this folder holds one group of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ._base import Group, IntervalStrategy, SaveStrategy, refusal
from ._checks import choice_problems, normalize, type_problems, with_defaults
from ._conflicts import conflicts
from ._names import METRIC_SCHEDULES, OPTIMIZERS, SCHEDULES, OptimizerNames, SchedulerType
from .aliases import ALIASES
from .batches import BatchArguments
from .best_model import BestModelArguments
from .data import DataArguments
from .duration import DurationArguments
from .evaluation import EvaluationArguments
from .hf_compat import HFMethods, ParallelMode
from .hub import HubArguments, HubStrategy
from .keywords import AliasMeta
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
from .serialization import Serializable

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


# `@dataclass` collects fields from the last base to the first. The reference page therefore shows the groups in this
# order from the bottom up.
@dataclass(kw_only=True)
class TrainingArguments(
    Serializable,
    HFMethods,
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
    metaclass=AliasMeta,
):
    """All arguments of a run, with the names and the defaults of transformers' `TrainingArguments`.

    Values stay as the user writes them. Derived values are properties: `device`, `train_batch_size`, `given`, ...

    Raises:
        ArgumentError: Lists all problems of the call at once.
    """

    def __post_init__(self) -> None:
        self._normalize_and_check()

    def _normalize_and_check(self) -> None:
        """Normalize all values, check them, and fill in fields that depend on others.

        The setters call this method too. It is not part of `__post_init__`, so that the `__post_init__` of a subclass
        runs only once.
        """
        for field in fields(TrainingArguments):
            setattr(self, field.name, normalize(field, getattr(self, field.name)))
        if problems := [*self.problems()]:
            raise refusal(problems)
        # This is the only place that fills in fields. Callbacks and scripts for transformers expect the values here.
        # `given` does not list them, because `fallbacks` does.
        self.eval_steps = self.eval_steps or None
        self.do_eval = self.do_eval or self.eval_strategy != IntervalStrategy.NO
        for name, value in self.fallbacks().items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def fallbacks(self) -> dict[str, Any]:
        """Return name -> value for unset fields whose value depends on other fields."""
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
        """Yield all problems of the values. A value of the wrong type counts as its default in the other checks."""
        wrong = type_problems(self, TrainingArguments)
        checkable = with_defaults(self, wrong)
        yield from wrong.values()
        yield from choice_problems(checkable, TrainingArguments)
        for group in reversed(TrainingArguments.__bases__):
            if issubclass(group, Group):
                yield from group.problems(checkable)
        yield from conflicts(checkable)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Return `to_dict()` for hyperparameter tables: values other than numbers, strings and bools become strings."""
        values = {**self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: v if type(v) in (bool, int, float, str) else str(v) for name, v in values.items()}
