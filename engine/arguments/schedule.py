"""The learning rate schedule and its warmup."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..optim.schedules import SCHEDULES
from ._base import Group, arg, must, steps_or_share
from ._names import SchedulerType


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ScheduleArguments(Group):
    """The learning rate schedule and its warmup."""

    lr_scheduler_type: SchedulerType | str = arg(
        SchedulerType.LINEAR,
        "Name of the learning rate schedule. 'reduce_lr_on_plateau' and 'greedy' follow a metric and need an "
        "`eval_strategy`.",
        choices=SCHEDULES,
        enum=SchedulerType,
    )
    lr_scheduler_kwargs: dict[str, Any] | None = arg(
        None,
        "Further options of the schedule, such as {'num_cycles': 2}. None: the defaults of the schedule.",
        json=True,
    )
    warmup_steps: float = arg(
        0,
        "Number of steps in which the learning rate rises linearly from 0 to its peak. A value below 1 is a fraction "
        "of the run.",
    )
    warmup_ratio: float = arg(
        0.0, "Warmup as a fraction of the run, in [0, 1]. Ignored if `warmup_steps` is set.", none=True
    )

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the number of warmup steps in a run of `num_training_steps` steps.

        If the warmup is set as a fraction of the run, the number of steps is rounded up.
        """
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * (self.warmup_steps or self.warmup_ratio))

    def problems(self) -> Iterator[str]:
        yield from must(
            self,
            steps_or_share,
            "set it to a whole number of steps, or to a fraction of the run in [0, 1).",
            "warmup_steps",
        )
        yield from must(
            self, lambda share: 0 <= share <= 1, "set it to a fraction of the run in [0, 1].", "warmup_ratio"
        )
