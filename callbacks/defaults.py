"""The callbacks that a Trainer starts with, in one visible tuple."""

from __future__ import annotations

from ..events.callback import Callback
from .align_tokens import AlignTokens
from .carry_past import CarryPast
from .checkpoint import Checkpoint
from .compile_model import Compile
from .control_file import ControlFile
from .count_flops import CountFlops
from .count_tokens import CountTokens
from .data_parallel import DataParallel
from .ddp import DDP
from .empty_cache import EmptyCache
from .evaluate import Evaluate
from .fsdp import FSDP
from .gradient_checkpointing import GradientCheckpointing
from .half_evaluation import HalfEvaluation
from .half_weights import HalfWeights
from .keep_best import KeepBest
from .log import Log
from .memory_metrics import MemoryMetrics
from .metric_schedule import MetricSchedule
from .mixed_precision import MixedPrecision
from .neftune import NEFTune
from .progress import Progress
from .schedule_free import ScheduleFree
from .sharded_optimizer import ShardedOptimizer
from .status_file import StatusFile
from .stop_at_max_steps import StopAtMaxSteps
from .stop_at_time import StopAtTime
from .stop_on_signal import StopOnSignal
from .tf32 import TF32
from .watch_numbers import WatchNumbers

DEFAULTS: tuple[type[Callback], ...] = (
    AlignTokens,
    DataParallel,
    DDP,
    ShardedOptimizer,
    FSDP,
    TF32,
    MixedPrecision,
    HalfWeights,
    HalfEvaluation,
    GradientCheckpointing,
    NEFTune,
    CarryPast,
    WatchNumbers,
    Compile,
    ScheduleFree,
    CountTokens,
    MemoryMetrics,
    EmptyCache,
    CountFlops,
    MetricSchedule,
    StopAtMaxSteps,
    StopAtTime,
    StopOnSignal,
    ControlFile,
    Log,
    Evaluate,
    KeepBest,
    Checkpoint,
    StatusFile,
    Progress,
)
"""Each is built by its `from_arguments`, which returns None where the arguments do not ask for it.

A callback of the same class in the user's list takes its place.
"""
