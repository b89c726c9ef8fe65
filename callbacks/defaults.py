"""The callbacks that a Trainer starts with, in one visible tuple."""

from __future__ import annotations

from ..events.callback import Callback
from .checkpoint import Checkpoint
from .count_flops import CountFlops
from .ddp import DDP
from .evaluate import Evaluate
from .gradient_checkpointing import GradientCheckpointing
from .keep_best import KeepBest
from .log import Log
from .metric_schedule import MetricSchedule
from .mixed_precision import MixedPrecision
from .progress import Progress
from .stop_at_max_steps import StopAtMaxSteps

DEFAULTS: tuple[type[Callback], ...] = (
    DDP,
    MixedPrecision,
    GradientCheckpointing,
    CountFlops,
    MetricSchedule,
    StopAtMaxSteps,
    Log,
    Evaluate,
    KeepBest,
    Checkpoint,
    Progress,
)
"""Each is built by its `from_arguments`, which returns None where the arguments do not ask for it.

A callback of the same class in the user's list takes its place.
"""
