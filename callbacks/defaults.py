"""The classes of all default callbacks, in one tuple."""

from __future__ import annotations

from ..events.callback import Callback
from .flow.checkpoint import Checkpoint
from .flow.control_file import ControlFile
from .flow.evaluate import Evaluate
from .flow.keep_best import KeepBest
from .flow.log import Log
from .model.align_tokens import AlignTokens
from .model.compile_model import Compile
from .model.export_model import ExportModel
from .model.gradient_checkpointing import GradientCheckpointing
from .model.neftune import NEFTune
from .model.recurrent_memory import RecurrentMemory
from .monitor.account_time import AccountTime
from .monitor.capsule import Capsule
from .monitor.count_flops import CountFlops
from .monitor.count_tokens import CountTokens
from .monitor.dry_batch import DryBatch
from .monitor.empty_cache import EmptyCache
from .monitor.follow_plan import FollowPlan
from .monitor.measure_goodput import MeasureGoodput
from .monitor.memory_metrics import MemoryMetrics
from .monitor.progress import Progress
from .monitor.record import Record
from .monitor.status_file import StatusFile
from .monitor.summary import Summary
from .monitor.watch_callbacks import WatchCallbacks
from .monitor.watch_numbers import WatchNumbers
from .monitor.watch_stalls import WatchStalls
from .optimizer.metric_schedule import MetricSchedule
from .optimizer.schedule_free import ScheduleFree
from .parallel.data_parallel import DataParallel
from .parallel.ddp import DDP
from .parallel.fsdp import FSDP
from .parallel.sharded_optimizer import ShardedOptimizer
from .precision.half_evaluation import HalfEvaluation
from .precision.half_weights import HalfWeights
from .precision.mixed_precision import MixedPrecision
from .precision.tf32 import TF32
from .stopping.stop_at_max_steps import StopAtMaxSteps
from .stopping.stop_at_time import StopAtTime
from .stopping.stop_on_signal import StopOnSignal

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
    RecurrentMemory,
    WatchNumbers,
    WatchCallbacks,
    Capsule,
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
    ExportModel,
    StatusFile,
    Record,
    FollowPlan,
    AccountTime,
    WatchStalls,
    MeasureGoodput,
    DryBatch,
    Summary,
    Progress,
)
"""The classes of the default callbacks.

The trainer calls `from_arguments` of each class. `from_arguments` returns None if the arguments do not select the
callback. A callback of the same class in the user's list replaces the built callback.
"""
