"""Learning rate schedules: the table of names, and `get_scheduler`, which builds a schedule from its name.

To add a schedule, add a row to `SCHEDULES`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from ...events.errors import ArgumentError, nearest, note
from .greedy_lr import GreedyLR
from .registry import name_of
from .schedule_factors import (
    constant,
    constant_with_warmup,
    cosine,
    cosine_warmup_with_min_lr,
    cosine_with_min_lr,
    cosine_with_restarts,
    inverse_sqrt,
    linear,
    polynomial,
    warmup_stable_decay,
)

SCHEDULES: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "cosine": cosine,
    "cosine_with_restarts": cosine_with_restarts,
    "polynomial": polynomial,
    "constant": constant,
    "constant_with_warmup": constant_with_warmup,
    "inverse_sqrt": inverse_sqrt,
    "reduce_lr_on_plateau": ReduceLROnPlateau,
    "cosine_with_min_lr": cosine_with_min_lr,
    "cosine_warmup_with_min_lr": cosine_warmup_with_min_lr,
    "warmup_stable_decay": warmup_stable_decay,
    "greedy": GreedyLR,
}
"""Name for `lr_scheduler_type` -> a function of `schedule_factors`, or a scheduler class that steps with a metric."""

METRIC_SCHEDULES = frozenset(name for name, entry in SCHEDULES.items() if isinstance(entry, type))
"""Names of the schedules that step with a metric. A run with such a schedule needs evaluations."""

NOT_NEGATIVE = (
    *("num_cycles", "power", "lr_end", "min_lr", "min_lr_rate", "min_lr_ratio", "warmup_lr_rate"),
    *("num_decay_steps", "num_stable_steps", "factor", "patience", "cooldown", "eps"),
)
"""Options that are numbers of 0 or more. With a negative number, a schedule would have negative learning rates, or fail
in the middle of a run."""

_SET_BY_GET_SCHEDULER = frozenset({"step", "optimizer", "num_warmup_steps", "num_training_steps", "lr_init"})
"""Parameters that `get_scheduler` sets. The user sets all others, in `lr_scheduler_kwargs`."""


def accepted_kwargs(name: str) -> tuple[str, ...]:
    """Return the names that `lr_scheduler_kwargs` accepts for the schedule `name`, in the order of its signature.

    Raises:
        ArgumentError: The name is unknown.
    """
    own = tuple(key for key in inspect.signature(_entry(name)).parameters if key not in _SET_BY_GET_SCHEDULER)
    return own if name in METRIC_SCHEDULES else (*own, "last_epoch")


def get_scheduler(
    name: str,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> LRScheduler:
    """Build the learning rate scheduler with this name.

    Args:
        name: A name of `SCHEDULES`, such as `cosine`, as text or as a member of a string enum.
        optimizer: The optimizer. The learning rates of its groups become the initial learning rates, and the schedule
            multiplies them by a factor. The options `lr_end` and `min_lr` are learning rates. The schedule divides them
            by `optimizer.defaults["lr"]` to get a factor.
        num_warmup_steps: Length of the warmup in optimizer steps; None for a schedule without a warmup.
        num_training_steps: Length of the run in optimizer steps; None for a schedule without an end.
        scheduler_specific_kwargs: Options as in `kwargs`, but as one mapping, for compatibility with transformers.
        kwargs: Options of the schedule: see `accepted_kwargs`. The default of `last_epoch` is -1, for a new run. An
            option in `kwargs` overrides the same option in `scheduler_specific_kwargs`.

    Returns:
        For `reduce_lr_on_plateau` and `greedy`, a `ReduceLROnPlateau` or a `GreedyLR`, to step with a metric after
        every evaluation. For any other name, a `LambdaLR`, to step after every optimizer step. The `state_dict()` of
        each schedule is plain data. The state of a `LambdaLR` does not contain the options. Before you load such a
        state, build the schedule with the same options.

    Raises:
        ArgumentError: The name or an option is unknown, a required option is missing, options exclude each other, or a
            number is outside of its range.
    """
    name = name_of(name)
    kwargs = {**(scheduler_specific_kwargs or {}), **kwargs}
    entry = _entry(name)
    accepted = accepted_kwargs(name)
    for key in kwargs:
        if key not in accepted:
            raise ArgumentError(
                f"lr_scheduler_kwargs: lr_scheduler_type={name!r} has no option {key!r}{nearest(key, accepted)} "
                f"Its options: {', '.join(accepted)}."
            )
    _check_numbers(name, kwargs)
    if name in METRIC_SCHEDULES:
        scheduler: LRScheduler = entry(optimizer, **kwargs)
        return scheduler

    last_epoch = kwargs.pop("last_epoch", -1)
    lengths = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    options = {"lr_init": optimizer.defaults.get("lr"), **lengths, **kwargs}
    parameters = inspect.signature(entry).parameters
    options = {key: value for key, value in options.items() if key in parameters}
    for key, parameter in parameters.items():
        if key != "step" and parameter.default is parameter.empty and options.get(key) is None:
            where = "" if key in _SET_BY_GET_SCHEDULER else f" in lr_scheduler_kwargs={{{key!r}: ...}}"
            raise ArgumentError(f"lr_scheduler_type={name!r} needs {key}. Set it{where}.")
    # A partial can be pickled, a closure cannot. LambdaLR saves neither in its state.
    return LambdaLR(optimizer, partial(entry, **options), last_epoch)


def _check_numbers(name: str, kwargs: Mapping[str, Any]) -> None:
    for key in NOT_NEGATIVE:
        value = kwargs.get(key)
        values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        if not all(isinstance(each, Real) and float(each) >= 0 for each in values):
            raise ArgumentError(
                f"lr_scheduler_kwargs: {key}={value!r} of lr_scheduler_type={name!r} is not a number of 0 or more. "
                f"Correct {key}."
            )


def needs_metric(scheduler: object) -> bool:
    """Return whether `scheduler` is a `ReduceLROnPlateau`, or has a method `step` that requires an argument `metrics`.

    Such a scheduler steps after evaluations. Other schedulers step after optimizer steps.
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        return True
    step = getattr(scheduler, "step", None)
    metrics = inspect.signature(step).parameters.get("metrics") if callable(step) else None
    return metrics is not None and metrics.default is metrics.empty


def _entry(name: str) -> Callable[..., Any]:
    if name not in SCHEDULES:
        raise ArgumentError(
            f"lr_scheduler_type={name!r} is unknown{nearest(name, SCHEDULES)} Known: {', '.join(SCHEDULES)}."
        )
    return SCHEDULES[name]


def step_schedule(schedule: Any) -> None:
    """Step a schedule. If it has another number of parameter groups than its optimizer, the error says so."""
    try:
        schedule.step()
    except ValueError as error:
        known = getattr(schedule, "base_lrs", None)
        groups = getattr(getattr(schedule, "optimizer", None), "param_groups", None)
        if known is not None and groups is not None and len(groups) != len(known):
            note(
                error,
                f"The optimizer has {len(groups)} parameter groups, but the schedule was built for {len(known)}. Add "
                "all groups before the schedule is built: in `create_optimizer`, or in the seam `make_optimizer`.",
            )
        raise
