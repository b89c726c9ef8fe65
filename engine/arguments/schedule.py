"""How the learning rate moves over the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._base import Group, arg, must, steps_or_share
from ._names import SchedulerType


@dataclass(kw_only=True)
class ScheduleArguments(Group):
    """How the learning rate moves over the run."""

    lr_scheduler_type: SchedulerType | str = arg(
        SchedulerType.LINEAR, "Learning rate schedule, by name.", choices=SchedulerType
    )
    lr_scheduler_kwargs: dict[str, Any] | None = arg(None, "More options for the schedule.", json=True)
    warmup_steps: float = arg(
        0, "Steps over which the learning rate climbs from 0 to its peak; below 1, a share of the run."
    )
    warmup_ratio: float = arg(0.0, "The same climb as a share of the run, in [0, 1]; `warmup_steps` wins over it.")

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Steps of warm-up in a run of `num_training_steps`; a share of it is rounded up."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * (self.warmup_steps or self.warmup_ratio))

    def problems(self) -> Iterator[str]:
        yield from must(self, steps_or_share, "give whole steps, or a share of the run in [0, 1).", "warmup_steps")
        yield from must(self, lambda share: 0 <= share <= 1, "give a share of the run in [0, 1].", "warmup_ratio")
