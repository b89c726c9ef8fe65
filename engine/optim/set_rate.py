"""Change the learning rate of a running training."""

from __future__ import annotations

from typing import Any

import torch


def set_learning_rate(optimizer: Any, scheduler: Any, rate: float) -> None:
    """Scale all learning rates, so that the highest initial learning rate of the schedule is `rate`.

    The initial learning rates are the `base_lrs` of the schedule. Without `base_lrs` or without a schedule, the highest
    current learning rate of the optimizer becomes `rate`. The schedule keeps its shape, and the parameter groups keep
    the ratios of their learning rates. If the highest learning rate is 0, each group gets `rate`. Checkpoints save the
    change with the optimizer and the schedule.

    Args:
        optimizer: an object with `param_groups`.
        scheduler: a learning-rate scheduler; None if there is none.
        rate: the learning rate, above 0.
    """
    highest = max(initial_rates(optimizer, scheduler))
    groups, schedules = optimizer.param_groups, _with_bases(scheduler)
    for each in schedules:
        each.base_lrs = [base * rate / highest if highest else rate for base in each.base_lrs]
    for group in groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                _assign(group, name, group[name] * rate / highest if highest else rate)
    for each in schedules:
        each._last_lr = [group["lr"] for group in groups]


def initial_rates(optimizer: Any, scheduler: Any) -> list[float]:
    """Return the initial learning rates of the schedule. If there are none, return the current ones of the optimizer.

    Args:
        optimizer: an object with `param_groups`.
        scheduler: a learning-rate scheduler; None if there is none.
    """
    bases = [float(base) for each in _with_bases(scheduler) for base in each.base_lrs]
    return bases or [float(group["lr"]) for group in optimizer.param_groups]


def _with_bases(scheduler: Any) -> list[Any]:
    return [each for each in _all_schedules(scheduler) if getattr(each, "base_lrs", None)]


def _all_schedules(scheduler: Any) -> list[Any]:
    """Return a schedule and all schedules inside of it, such as the parts of a `SequentialLR`."""
    if scheduler is None:
        return []
    return [scheduler, *(inner for each in getattr(scheduler, "_schedulers", ()) for inner in _all_schedules(each))]


def _assign(group: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(group[name], torch.Tensor):  # of a capturable or compiled optimizer, which keeps the tensor
        group[name].fill_(float(value))
    else:
        group[name] = float(value)
