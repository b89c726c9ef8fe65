"""The callbacks, with one feature per file. A callback runs on events, and may request logs, evaluations and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .flow.checkpoint import Checkpoint as Checkpoint
    from .flow.control_file import ControlFile as ControlFile
    from .flow.evaluate import Evaluate as Evaluate
    from .flow.keep_best import KeepBest as KeepBest
    from .flow.log import Log as Log
    from .flow.report_to_trial import ReportToTrial as ReportToTrial
    from .hf import DefaultFlowCallback as DefaultFlowCallback
    from .hf import EarlyStoppingCallback as EarlyStoppingCallback
    from .hf import ExportableState as ExportableState
    from .hf import PrinterCallback as PrinterCallback
    from .hf import ProgressCallback as ProgressCallback
    from .hf import TrainerCallback as TrainerCallback
    from .model.align_tokens import AlignTokens as AlignTokens
    from .model.compile_model import Compile as Compile
    from .model.ema import EMA as EMA
    from .model.freeze import Freeze as Freeze
    from .model.gradient_checkpointing import GradientCheckpointing as GradientCheckpointing
    from .model.neftune import NEFTune as NEFTune
    from .model.recurrent_memory import CarryPast as CarryPast
    from .model.recurrent_memory import RecurrentMemory as RecurrentMemory
    from .monitor.count_flops import CountFlops as CountFlops
    from .monitor.count_tokens import CountTokens as CountTokens
    from .monitor.empty_cache import EmptyCache as EmptyCache
    from .monitor.memory_metrics import MemoryMetrics as MemoryMetrics
    from .monitor.progress import Progress as Progress
    from .monitor.status_file import StatusFile as StatusFile
    from .monitor.watch_numbers import WatchNumbers as WatchNumbers
    from .optimizer.find_learning_rate import FindLearningRate as FindLearningRate
    from .optimizer.metric_schedule import MetricSchedule as MetricSchedule
    from .optimizer.schedule_free import ScheduleFree as ScheduleFree
    from .parallel.data_parallel import DataParallel as DataParallel
    from .parallel.ddp import DDP as DDP
    from .parallel.fsdp import FSDP as FSDP
    from .parallel.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
    from .precision.half_evaluation import HalfEvaluation as HalfEvaluation
    from .precision.half_weights import HalfWeights as HalfWeights
    from .precision.mixed_precision import MixedPrecision as MixedPrecision
    from .precision.tf32 import TF32 as TF32
    from .stopping.early_stopping import EarlyStopping as EarlyStopping
    from .stopping.nan_guard import NaNGuard as NaNGuard
    from .stopping.stop_at_max_steps import StopAtMaxSteps as StopAtMaxSteps
    from .stopping.stop_at_time import StopAtTime as StopAtTime
    from .stopping.stop_on_signal import StopOnSignal as StopOnSignal

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "flow.checkpoint": ("Checkpoint",),
        "flow.control_file": ("ControlFile",),
        "flow.evaluate": ("Evaluate",),
        "flow.keep_best": ("KeepBest",),
        "flow.log": ("Log",),
        "flow.report_to_trial": ("ReportToTrial",),
        "hf": (
            "DefaultFlowCallback",
            "EarlyStoppingCallback",
            "ExportableState",
            "PrinterCallback",
            "ProgressCallback",
            "TrainerCallback",
        ),
        "model.align_tokens": ("AlignTokens",),
        "model.compile_model": ("Compile",),
        "model.ema": ("EMA",),
        "model.freeze": ("Freeze",),
        "model.gradient_checkpointing": ("GradientCheckpointing",),
        "model.neftune": ("NEFTune",),
        "model.recurrent_memory": ("CarryPast", "RecurrentMemory"),
        "monitor.count_flops": ("CountFlops",),
        "monitor.count_tokens": ("CountTokens",),
        "monitor.empty_cache": ("EmptyCache",),
        "monitor.memory_metrics": ("MemoryMetrics",),
        "monitor.progress": ("Progress",),
        "monitor.status_file": ("StatusFile",),
        "monitor.watch_numbers": ("WatchNumbers",),
        "optimizer.find_learning_rate": ("FindLearningRate",),
        "optimizer.metric_schedule": ("MetricSchedule",),
        "optimizer.schedule_free": ("ScheduleFree",),
        "parallel.data_parallel": ("DataParallel",),
        "parallel.ddp": ("DDP",),
        "parallel.fsdp": ("FSDP",),
        "parallel.sharded_optimizer": ("ShardedOptimizer",),
        "precision.half_evaluation": ("HalfEvaluation",),
        "precision.half_weights": ("HalfWeights",),
        "precision.mixed_precision": ("MixedPrecision",),
        "precision.tf32": ("TF32",),
        "stopping.early_stopping": ("EarlyStopping",),
        "stopping.nan_guard": ("NaNGuard",),
        "stopping.stop_at_max_steps": ("StopAtMaxSteps",),
        "stopping.stop_at_time": ("StopAtTime",),
        "stopping.stop_on_signal": ("StopOnSignal",),
    },
)
