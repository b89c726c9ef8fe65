"""The learning-rate schedules that DeepSpeed's configuration can name: schedules of DeepSpeed and of torch."""

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
"""The entries of a schedule's state that have one value per parameter group."""


class Schedule:
    """A DeepSpeed schedule that saves and loads its state in the format of torch's schedules."""

    def __init__(self, inner: Any) -> None:
        """Wrap `inner`, a DeepSpeed schedule. DeepSpeed schedules count their steps from -1."""
        self.inner = inner

    def step(self) -> None:
        """Set the learning rates of the next step."""
        self.inner.step()

    def get_last_lr(self) -> list[float]:
        """Return the current learning rate of each parameter group."""
        return [float(rate) for rate in self.inner.get_last_lr()]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps done and the learning rates, under the keys that torch's `LambdaLR` saves."""
        done = self.inner.last_batch_iteration + 1
        rates = self.get_last_lr()
        return {"last_epoch": done, "_step_count": done + 1, "_last_lr": rates, "lr_lambdas": [None] * len(rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` or torch's `LambdaLR` returned. The learning rates change at the next step."""
        self.inner.load_state_dict({"last_batch_iteration": state["last_epoch"] - 1})


def make_schedule(section: dict[str, Any], optimizer: Optimizer) -> Any:
    """Build the schedule that DeepSpeed's configuration names: a schedule of DeepSpeed or of torch.

    Args:
        section: the section `scheduler` of the configuration.
        optimizer: the torch optimizer whose learning rates the schedule sets.

    Raises:
        ArgumentError: if the name or a parameter is unknown, or if a value is invalid. For an unknown name, the error
            suggests the most similar known name.
    """
    name, known = section.get("type", ""), lr_schedules.VALID_LR_SCHEDULES
    kind = getattr(lr_schedules if name in known else torch.optim.lr_scheduler, name, None)
    if kind is None:
        raise ArgumentError(
            f"scheduler.type of DeepSpeed's configuration is {name!r}{nearest(name, known)} DeepSpeed has "
            f"{', '.join(known)}. The classes of torch.optim.lr_scheduler work too."
        )
    options = section.get("params", {})
    accepted = [*inspect.signature(kind).parameters][1:]
    for option in options:
        if option not in accepted:
            raise ArgumentError(
                f"scheduler.params of DeepSpeed's configuration has {option!r}, which {name} does not take"
                f"{nearest(option, accepted)} It takes: {', '.join(accepted)}."
            )
    logger.addFilter(_is_not_start_warning)
    try:
        schedule = kind(optimizer, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ArgumentError(
            f"{name} refuses scheduler.params={options} of DeepSpeed's configuration: {error}. Correct the values."
        ) from error
    finally:
        logger.removeFilter(_is_not_start_warning)
    return Schedule(schedule) if hasattr(schedule, "last_batch_iteration") else schedule


def _is_not_start_warning(record: logging.LogRecord) -> bool:
    # The constructors of DeepSpeed's schedules warn that the schedule has not started.
    return "before it has started" not in record.getMessage()


def keep_empty_groups(schedule: Any, filled: list[int], groups: int) -> Any:
    """Make a schedule save and load its rates for all parameter groups, although DeepSpeed drops empty groups.

    For example, without weight decay all parameters are in one of two groups, and the other group is empty. Checkpoints
    of runs without DeepSpeed have rates for both groups.

    Args:
        schedule: the schedule. The function changes the schedule in place.
        filled: the indices of the groups that have parameters.
        groups: the number of groups, empty groups included.

    Returns:
        `schedule`, the same object.
    """
    save, load = schedule.state_dict, schedule.load_state_dict

    def save_all_groups() -> dict[str, Any]:
        state = {key: value for key, value in save().items() if key not in ("state_dict", "load_state_dict")}
        for name in PER_GROUP & state.keys():
            by_group = dict(zip(filled, state[name]))
            state[name] = [by_group.get(number, state[name][0]) for number in range(groups)]
        return state

    def load_all_groups(state: dict[str, Any]) -> None:
        load({key: [value[n] for n in filled] if key in PER_GROUP else value for key, value in state.items()})

    if len(filled) < groups:
        schedule.state_dict, schedule.load_state_dict = save_all_groups, load_all_groups
    return schedule
