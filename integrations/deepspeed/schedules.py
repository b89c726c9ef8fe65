"""Schedules that DeepSpeed's configuration names: DeepSpeed's own, with the manners of torch's, and torch's."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from deepspeed.runtime import lr_schedules
from deepspeed.utils import logger
from torch.optim import Optimizer

from ...events.errors import ArgumentError, nearest

PER_GROUP = {"base_lrs", "_last_lr", "lr_lambdas", "min_lrs"}
"""What a schedule has for each group of parameters."""


class Schedule:
    """A schedule of DeepSpeed's, with a state that torch's schedules can go on from, and going on from theirs."""

    def __init__(self, inner: Any) -> None:
        """Stand in for `inner`, which counts its steps from -1."""
        self.inner = inner

    def step(self) -> None:
        """Set the learning rates of the next step."""
        self.inner.step()

    def get_last_lr(self) -> list[float]:
        """Return the learning rates of the groups."""
        return [float(rate) for rate in self.inner.get_last_lr()]

    def state_dict(self) -> dict[str, Any]:
        """Return how far it is, in torch's words."""
        done = self.inner.last_batch_iteration + 1
        rates = self.get_last_lr()
        return {"last_epoch": done, "_step_count": done + 1, "_last_lr": rates, "lr_lambdas": [None] * len(rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; the learning rates are those of the optimizer until the next step."""
        self.inner.load_state_dict({"last_batch_iteration": state["last_epoch"] - 1})


def make_schedule(section: dict[str, Any], optimizer: Optimizer) -> Any:
    """Return the schedule that DeepSpeed's configuration names, of DeepSpeed's own or of torch's.

    Raises:
        ArgumentError: if there is none of that name, with the nearest, or it does not take what it is given.
    """
    name, known = section.get("type", ""), lr_schedules.VALID_LR_SCHEDULES
    kind = getattr(lr_schedules if name in known else torch.optim.lr_scheduler, name, None)
    if kind is None:
        raise ArgumentError(
            f"DeepSpeed's configuration names the scheduler {name!r}{nearest(name, known)} Known: {', '.join(known)}, "
            "and those of torch."
        )
    options = section.get("params", {})
    takes = [*inspect.signature(kind).parameters][1:]
    for option in options:
        if option not in takes:
            raise ArgumentError(
                f"DeepSpeed's configuration gives the scheduler {name} {option!r}{nearest(option, takes)} It takes: "
                f"{', '.join(takes)}."
            )
    logger.addFilter(_tells)
    try:
        schedule = kind(optimizer, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ArgumentError(f"DeepSpeed's configuration gives the scheduler {name} {options}: {error}") from error
    finally:
        logger.removeFilter(_tells)
    return Schedule(schedule) if hasattr(schedule, "last_batch_iteration") else schedule


def _tells(record: logging.LogRecord) -> bool:
    # As they are made, DeepSpeed's schedules warn that they have not begun yet.
    return "before it has started" not in record.getMessage()


def count_empty_groups(schedule: Any, filled: list[int], groups: int) -> Any:
    """Have a schedule save and load its rates as if DeepSpeed had not dropped the groups without parameters.

    Without weight decay all parameters are in the first of two groups, and the checkpoints of other runs count both.

    Args:
        schedule: what is changed, and returned.
        filled: the numbers of the groups that have parameters.
        groups: how many groups there are.
    """
    save, load = schedule.state_dict, schedule.load_state_dict

    def whole() -> dict[str, Any]:
        state = {key: value for key, value in save().items() if key not in ("state_dict", "load_state_dict")}
        for name in PER_GROUP & state.keys():
            found = dict(zip(filled, state[name]))
            state[name] = [found.get(number, state[name][0]) for number in range(groups)]
        return state

    def load_whole(state: dict[str, Any]) -> None:
        load({key: [value[n] for n in filled] if key in PER_GROUP else value for key, value in state.items()})

    if len(filled) < groups:
        schedule.state_dict, schedule.load_state_dict = whole, load_whole
    return schedule
