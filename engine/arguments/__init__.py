"""`TrainingArguments`: the arguments of a training run. The files of this folder declare them in groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from ._base import Group, IntervalStrategy, SaveStrategy, default_of, refusal
from ._checks import choice_problems, normalize, type_problems, with_defaults
from ._conflicts import conflicts
from ._names import METRIC_SCHEDULES, OPTIMIZERS, SCHEDULES, OptimizerNames, SchedulerType
from .accelerator_config import AcceleratorConfig
from .alias_properties import AliasProperties, add_alias_properties
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
from .plugins.group import PluginArguments
from .precision import PrecisionArguments
from .process import ProcessArguments
from .reporting import DebugOption, ReportingArguments
from .reproducibility import ReproducibilityArguments
from .saving import SavingArguments
from .schedule import ScheduleArguments
from .script import ScriptArguments
from .serialization import Serializable

__all__ = [
    "ALIASES",
    "OPTIMIZERS",
    "SCHEDULES",
    "AcceleratorConfig",
    "DebugOption",
    "HubStrategy",
    "IntervalStrategy",
    "OptimizerNames",
    "ParallelMode",
    "SaveStrategy",
    "SchedulerType",
    "TrainingArguments",
]


STEPS = {"logging_steps": "logging_strategy", "eval_steps": "eval_strategy", "save_steps": "save_strategy"}
"""Argument with an interval in steps -> the argument with the strategy that uses the interval."""


# `@dataclass` collects fields from the last base to the first. The reference page therefore shows the groups in this
# order from the bottom up.
@dataclass(kw_only=True)
class TrainingArguments(
    AliasProperties,
    Serializable,
    HFMethods,
    HubArguments,
    PluginArguments,
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

    Most values stay as the user writes them. Some values are converted, as in transformers: for example, `report_to`
    becomes a list. Derived values are properties, such as `device` and `train_batch_size`.

    Raises:
        ArgumentError: Lists all problems of the call at once.
    """

    def __post_init__(self) -> None:
        self._normalize_and_check()

    def _normalize_and_check(self) -> None:
        """Normalize all values, check them, and replace None by the defaults of the method `fallbacks`.

        The constructor and setters such as `set_training` call this method. Setters do not call `__post_init__`,
        because code that a subclass adds to `__post_init__` would run again.
        """
        vars(self).pop("_checked", None)
        self._remember_working_folder()
        self._translate_alias_fields()
        self._read_json_fields()
        for field in fields(TrainingArguments):
            setattr(self, field.name, normalize(field, getattr(self, field.name)))
        if problems := [*self.problems()]:
            raise refusal(problems)
        # This is the only place that fills in fields. Callbacks and scripts for transformers read these values from the
        # fields. `given` leaves them out, because `fallbacks` returns them.
        self._rewrite()
        for name, value in self.fallbacks().items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        vars(self)["_checked"] = True

    def _check_assigned(self, name: str, value: Any) -> None:
        """Refuse a value that is invalid by itself. Each assignment to a field after construction calls this method.

        A value that conflicts with other fields is allowed, because the other fields may be assigned next.

        Raises:
            ArgumentError: If the value has the wrong type or is not one of the valid values.
        """
        field = TrainingArguments.__dataclass_fields__.get(name)
        if field is None or value is None:
            return
        trial = object.__new__(TrainingArguments)
        vars(trial).update({each.name: default_of(each) for each in fields(TrainingArguments)})
        vars(trial)[name] = value = normalize(field, value)
        wrong = type_problems(trial, TrainingArguments)
        if name in wrong:
            raise refusal([wrong[name]])
        checks = [choice_problems(trial, TrainingArguments)]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            groups = [group for group in TrainingArguments.__bases__ if issubclass(group, Group)]
            checks += [group.problems(trial) for group in groups]
        own = [problem for check in checks for problem in check if problem.startswith(f"`{name}` is {value!r}")]
        if own:
            raise refusal(own[:1])

    def _rewrite(self) -> None:
        """Convert the values of some fields, as the constructor of transformers' `TrainingArguments` does."""
        by_steps = self.eval_strategy == IntervalStrategy.STEPS
        self.do_eval = self.do_eval or self.eval_strategy != IntervalStrategy.NO
        self.eval_steps = (self.eval_steps or None) if by_steps else self.eval_steps
        for name, strategy in STEPS.items():
            value = getattr(self, name)
            if getattr(self, strategy) == IntervalStrategy.STEPS and value is not None and value > 1:
                setattr(self, name, int(value))
        self.report_to = None if self.report_to is None else self.trackers
        self.debug = [DebugOption(name) for name in self.observed]
        self.include_num_input_tokens_seen = self.tokens_counted
        self.torch_compile = self.torch_compile or bool(self.torch_compile_backend or self.torch_compile_mode)
        self.dataloader_pin_memory = self.dataloader_pin_memory and not self.use_cpu
        self.accelerator_config = config = AcceleratorConfig.read(self.accelerator_config)
        self.gradient_accumulation_steps = (config.gradient_accumulation_kwargs or {}).get(
            "num_steps", self.gradient_accumulation_steps
        )

    def fallbacks(self) -> dict[str, Any]:
        """Return the defaults that depend on other fields: field name -> default. The default replaces None."""
        follows_metric = self.load_best_model_at_end or self.lr_scheduler_type in METRIC_SCHEDULES
        watched = "loss" if follows_metric else None
        metric = self.metric_for_best_model or watched
        return {
            "do_eval": self.eval_strategy != IntervalStrategy.NO,
            "eval_steps": self.logging_steps if self.eval_strategy == IntervalStrategy.STEPS else None,
            "metric_for_best_model": watched,
            "report_to": ["tensorboard"] if self.logging_dir and find_spec("tensorboard") else [],
            "debug": [],
            "dataloader_pin_memory": not self.use_cpu,
            "torch_compile": bool(self.torch_compile_backend or self.torch_compile_mode),
            "torch_compile_backend": "inductor" if self.torch_compile else None,
            "accelerator_config": AcceleratorConfig(),
            "greater_is_better": None if metric is None else not metric.endswith("loss"),
        }

    def problems(self) -> Iterator[str]:
        """Yield all problems of the arguments, as texts.

        If an argument has a value of a wrong type, the other checks use the default of this argument.
        """
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


add_alias_properties(TrainingArguments)
