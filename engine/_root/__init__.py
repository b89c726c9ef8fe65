"""trainbus: a PyTorch trainer you can see through. One page of loop, everything else a subscriber."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainbus.callbacks.align_tokens import AlignTokens as AlignTokens
    from trainbus.callbacks.carry_past import CarryPast as CarryPast
    from trainbus.callbacks.checkpoint import Checkpoint as Checkpoint
    from trainbus.callbacks.compile_model import Compile as Compile
    from trainbus.callbacks.control_file import ControlFile as ControlFile
    from trainbus.callbacks.count_flops import CountFlops as CountFlops
    from trainbus.callbacks.count_tokens import CountTokens as CountTokens
    from trainbus.callbacks.data_parallel import DataParallel as DataParallel
    from trainbus.callbacks.ddp import DDP as DDP
    from trainbus.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from trainbus.callbacks.ema import EMA as EMA
    from trainbus.callbacks.empty_cache import EmptyCache as EmptyCache
    from trainbus.callbacks.evaluate import Evaluate as Evaluate
    from trainbus.callbacks.find_learning_rate import FindLearningRate as FindLearningRate
    from trainbus.callbacks.freeze import Freeze as Freeze
    from trainbus.callbacks.fsdp import FSDP as FSDP
    from trainbus.callbacks.gradient_checkpointing import GradientCheckpointing as GradientCheckpointing
    from trainbus.callbacks.half_evaluation import HalfEvaluation as HalfEvaluation
    from trainbus.callbacks.half_weights import HalfWeights as HalfWeights
    from trainbus.callbacks.hf import DefaultFlowCallback as DefaultFlowCallback
    from trainbus.callbacks.hf import EarlyStoppingCallback as EarlyStoppingCallback
    from trainbus.callbacks.hf import PrinterCallback as PrinterCallback
    from trainbus.callbacks.hf import ProgressCallback as ProgressCallback
    from trainbus.callbacks.hf import TrainerCallback as TrainerCallback
    from trainbus.callbacks.keep_best import KeepBest as KeepBest
    from trainbus.callbacks.log import Log as Log
    from trainbus.callbacks.memory_metrics import MemoryMetrics as MemoryMetrics
    from trainbus.callbacks.metric_schedule import MetricSchedule as MetricSchedule
    from trainbus.callbacks.mixed_precision import MixedPrecision as MixedPrecision
    from trainbus.callbacks.nan_guard import NaNGuard as NaNGuard
    from trainbus.callbacks.neftune import NEFTune as NEFTune
    from trainbus.callbacks.progress import Progress as Progress
    from trainbus.callbacks.report_to_trial import ReportToTrial as ReportToTrial
    from trainbus.callbacks.schedule_free import ScheduleFree as ScheduleFree
    from trainbus.callbacks.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
    from trainbus.callbacks.status_file import StatusFile as StatusFile
    from trainbus.callbacks.stop_at_max_steps import StopAtMaxSteps as StopAtMaxSteps
    from trainbus.callbacks.stop_at_time import StopAtTime as StopAtTime
    from trainbus.callbacks.stop_on_signal import StopOnSignal as StopOnSignal
    from trainbus.callbacks.tf32 import TF32 as TF32
    from trainbus.callbacks.watch_numbers import WatchNumbers as WatchNumbers
    from trainbus.engine.adafactor import Adafactor as Adafactor
    from trainbus.engine.arguments import HubStrategy as HubStrategy
    from trainbus.engine.arguments import IntervalStrategy as IntervalStrategy
    from trainbus.engine.arguments import OptimizerNames as OptimizerNames
    from trainbus.engine.arguments import ParallelMode as ParallelMode
    from trainbus.engine.arguments import SaveStrategy as SaveStrategy
    from trainbus.engine.arguments import SchedulerType as SchedulerType
    from trainbus.engine.arguments import TrainingArguments as TrainingArguments
    from trainbus.engine.arguments.seq2seq import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from trainbus.engine.checkpoint.listing import get_last_checkpoint as get_last_checkpoint
    from trainbus.engine.checkpoint.retention import Keep as Keep
    from trainbus.engine.data.collate import DefaultDataCollator as DefaultDataCollator
    from trainbus.engine.data.collate import default_data_collator as default_data_collator
    from trainbus.engine.data.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from trainbus.engine.data.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from trainbus.engine.data.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from trainbus.engine.data.collators_lm import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from trainbus.engine.parser import ArgumentParser as ArgumentParser
    from trainbus.engine.parser import HfArgumentParser as HfArgumentParser
    from trainbus.engine.parser import PdArgumentParser as PdArgumentParser
    from trainbus.engine.run import Run as Run
    from trainbus.engine.schedule_functions import get_constant_schedule as get_constant_schedule
    from trainbus.engine.schedule_functions import (
        get_constant_schedule_with_warmup as get_constant_schedule_with_warmup,
    )
    from trainbus.engine.schedule_functions import get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup
    from trainbus.engine.schedule_functions import (
        get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
    )
    from trainbus.engine.schedule_functions import (
        get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
    )
    from trainbus.engine.schedule_functions import (
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    )
    from trainbus.engine.schedule_functions import get_greedy_schedule as get_greedy_schedule
    from trainbus.engine.schedule_functions import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
    from trainbus.engine.schedule_functions import get_linear_schedule_with_warmup as get_linear_schedule_with_warmup
    from trainbus.engine.schedule_functions import (
        get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
    )
    from trainbus.engine.schedule_functions import get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule
    from trainbus.engine.schedule_functions import get_wsd_schedule as get_wsd_schedule
    from trainbus.engine.schedules import get_scheduler as get_scheduler
    from trainbus.engine.search import BestRun as BestRun
    from trainbus.engine.seq2seq import Seq2SeqTrainer as Seq2SeqTrainer
    from trainbus.engine.trainer import Trainer as Trainer
    from trainbus.engine.utils import EvalLoopOutput as EvalLoopOutput
    from trainbus.engine.utils import EvalPrediction as EvalPrediction
    from trainbus.engine.utils import PredictionOutput as PredictionOutput
    from trainbus.engine.utils import TrainOutput as TrainOutput
    from trainbus.engine.utils import enable_full_determinism as enable_full_determinism
    from trainbus.engine.utils import set_seed as set_seed
    from trainbus.events.callback import Callback as Callback
    from trainbus.events.catalog import Event as Event
    from trainbus.events.control import TrainerControl as TrainerControl
    from trainbus.events.errors import TrainbusError as TrainbusError
    from trainbus.events.stages import Stage as Stage
    from trainbus.events.stages import order as order
    from trainbus.events.state import TrainerState as TrainerState
    from trainbus.events.triggers import Trigger as Trigger
    from trainbus.events.triggers import at as at
    from trainbus.events.triggers import at_end as at_end
    from trainbus.events.triggers import every as every
    from trainbus.events.triggers import log_spaced as log_spaced
    from trainbus.events.triggers import never as never
    from trainbus.integrations.deepspeed import DeepSpeed as DeepSpeed
    from trainbus.integrations.fairscale import ShardedDDP as ShardedDDP
    from trainbus.integrations.fairscale_fsdp import FairscaleFSDP as FairscaleFSDP
    from trainbus.integrations.hub import PushToHub as PushToHub
    from trainbus.integrations.liger import Liger as Liger
    from trainbus.integrations.mlflow import MLflow as MLflow
    from trainbus.integrations.tensorboard import TensorBoard as TensorBoard
    from trainbus.integrations.trackio import Trackio as Trackio
    from trainbus.integrations.wandb import Wandb as Wandb

_PLACES = {
    "callbacks.align_tokens": ("AlignTokens",),
    "callbacks.carry_past": ("CarryPast",),
    "callbacks.checkpoint": ("Checkpoint",),
    "callbacks.compile_model": ("Compile",),
    "callbacks.control_file": ("ControlFile",),
    "callbacks.count_flops": ("CountFlops",),
    "callbacks.count_tokens": ("CountTokens",),
    "callbacks.data_parallel": ("DataParallel",),
    "callbacks.ddp": ("DDP",),
    "callbacks.early_stopping": ("EarlyStopping",),
    "callbacks.ema": ("EMA",),
    "callbacks.empty_cache": ("EmptyCache",),
    "callbacks.evaluate": ("Evaluate",),
    "callbacks.find_learning_rate": ("FindLearningRate",),
    "callbacks.freeze": ("Freeze",),
    "callbacks.fsdp": ("FSDP",),
    "callbacks.gradient_checkpointing": ("GradientCheckpointing",),
    "callbacks.half_evaluation": ("HalfEvaluation",),
    "callbacks.half_weights": ("HalfWeights",),
    "callbacks.hf": (
        "DefaultFlowCallback", "EarlyStoppingCallback", "PrinterCallback", "ProgressCallback", "TrainerCallback",
    ),
    "callbacks.keep_best": ("KeepBest",),
    "callbacks.log": ("Log",),
    "callbacks.memory_metrics": ("MemoryMetrics",),
    "callbacks.metric_schedule": ("MetricSchedule",),
    "callbacks.mixed_precision": ("MixedPrecision",),
    "callbacks.nan_guard": ("NaNGuard",),
    "callbacks.neftune": ("NEFTune",),
    "callbacks.progress": ("Progress",),
    "callbacks.report_to_trial": ("ReportToTrial",),
    "callbacks.schedule_free": ("ScheduleFree",),
    "callbacks.sharded_optimizer": ("ShardedOptimizer",),
    "callbacks.status_file": ("StatusFile",),
    "callbacks.stop_at_max_steps": ("StopAtMaxSteps",),
    "callbacks.stop_at_time": ("StopAtTime",),
    "callbacks.stop_on_signal": ("StopOnSignal",),
    "callbacks.tf32": ("TF32",),
    "callbacks.watch_numbers": ("WatchNumbers",),
    "engine.adafactor": ("Adafactor",),
    "engine.arguments": (
        "HubStrategy", "IntervalStrategy", "OptimizerNames", "ParallelMode", "SaveStrategy", "SchedulerType",
        "TrainingArguments",
    ),
    "engine.arguments.seq2seq": ("Seq2SeqTrainingArguments",),
    "engine.checkpoint.listing": ("get_last_checkpoint",),
    "engine.checkpoint.retention": ("Keep",),
    "engine.data.collate": ("DefaultDataCollator", "default_data_collator"),
    "engine.data.collators": (
        "DataCollatorForSeq2Seq", "DataCollatorForTokenClassification", "DataCollatorWithPadding",
    ),
    "engine.data.collators_lm": ("DataCollatorForLanguageModeling",),
    "engine.parser": ("ArgumentParser", "HfArgumentParser", "PdArgumentParser"),
    "engine.run": ("Run",),
    "engine.schedule_functions": (
        "get_constant_schedule",
        "get_constant_schedule_with_warmup",
        "get_cosine_schedule_with_warmup",
        "get_cosine_with_hard_restarts_schedule_with_warmup",
        "get_cosine_with_min_lr_schedule_with_warmup",
        "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
        "get_greedy_schedule",
        "get_inverse_sqrt_schedule",
        "get_linear_schedule_with_warmup",
        "get_polynomial_decay_schedule_with_warmup",
        "get_reduce_on_plateau_schedule",
        "get_wsd_schedule",
    ),
    "engine.schedules": ("get_scheduler",),
    "engine.search": ("BestRun",),
    "engine.seq2seq": ("Seq2SeqTrainer",),
    "engine.trainer": ("Trainer",),
    "engine.utils": (
        "EvalLoopOutput", "EvalPrediction", "PredictionOutput", "TrainOutput", "enable_full_determinism", "set_seed",
    ),
    "events": (
        "Callback", "Event", "Stage", "TrainbusError", "TrainerControl", "TrainerState", "Trigger",
        "at", "at_end", "every", "log_spaced", "never", "order",
    ),
}  # fmt: skip
"""Where each public name lives: importing trainbus imports none of it, using a name imports its module."""

_EXTRAS = {
    "DeepSpeed": "deepspeed", "FairscaleFSDP": "fairscale_fsdp", "Liger": "liger", "MLflow": "mlflow",
    "PushToHub": "hub", "ShardedDDP": "sharded_ddp", "TensorBoard": "tensorboard", "Trackio": "trackio",
    "Wandb": "wandb",
}  # fmt: skip
"""Public names of integrations, which `integrations.load` imports or explains how to install."""

_HOME = {name: place for place, names in _PLACES.items() for name in names}

__all__ = ["__version__", *_HOME]
"""What `from trainbus import *` imports: integrations are imported by name, since not everybody has their packages."""


def __getattr__(name: str) -> Any:
    if name in _EXTRAS:
        return importlib.import_module(".integrations", __name__).load(_EXTRAS[name])
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_EXTRAS])
