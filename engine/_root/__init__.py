"""trainbus: a PyTorch training engine. The loop is one short file; every other feature is a callback."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainbus.callbacks.base.predictions import Predictions as Predictions
    from trainbus.callbacks.flow.checkpoint import Checkpoint as Checkpoint
    from trainbus.callbacks.flow.control_file import ControlFile as ControlFile
    from trainbus.callbacks.flow.evaluate import Evaluate as Evaluate
    from trainbus.callbacks.flow.keep_best import KeepBest as KeepBest
    from trainbus.callbacks.flow.log import Log as Log
    from trainbus.callbacks.flow.report_to_trial import ReportToTrial as ReportToTrial
    from trainbus.callbacks.flow.save_on_exception import SaveOnException as SaveOnException
    from trainbus.callbacks.flow.skip_batches import SkipBatches as SkipBatches
    from trainbus.callbacks.hf import DefaultFlowCallback as DefaultFlowCallback
    from trainbus.callbacks.hf import EarlyStoppingCallback as EarlyStoppingCallback
    from trainbus.callbacks.hf import ExportableState as ExportableState
    from trainbus.callbacks.hf import PrinterCallback as PrinterCallback
    from trainbus.callbacks.hf import ProgressCallback as ProgressCallback
    from trainbus.callbacks.hf import TrainerCallback as TrainerCallback
    from trainbus.callbacks.model.align_tokens import AlignTokens as AlignTokens
    from trainbus.callbacks.model.chunked_cross_entropy import ChunkedCrossEntropy as ChunkedCrossEntropy
    from trainbus.callbacks.model.compile_model import Compile as Compile
    from trainbus.callbacks.model.ema import EMA as EMA
    from trainbus.callbacks.model.export_model import ExportModel as ExportModel
    from trainbus.callbacks.model.freeze import Freeze as Freeze
    from trainbus.callbacks.model.gradient_checkpointing import GradientCheckpointing as GradientCheckpointing
    from trainbus.callbacks.model.neftune import NEFTune as NEFTune
    from trainbus.callbacks.model.offload_activations import OffloadActivations as OffloadActivations
    from trainbus.callbacks.model.recurrent_memory import CarryPast as CarryPast
    from trainbus.callbacks.model.recurrent_memory import RecurrentMemory as RecurrentMemory
    from trainbus.callbacks.model.swa import SWA as SWA
    from trainbus.callbacks.monitor.account_time import AccountTime as AccountTime
    from trainbus.callbacks.monitor.capsule import Capsule as Capsule
    from trainbus.callbacks.monitor.collect_garbage import CollectGarbage as CollectGarbage
    from trainbus.callbacks.monitor.count_flops import CountFlops as CountFlops
    from trainbus.callbacks.monitor.count_tokens import CountTokens as CountTokens
    from trainbus.callbacks.monitor.dry_batch import DryBatch as DryBatch
    from trainbus.callbacks.monitor.empty_cache import EmptyCache as EmptyCache
    from trainbus.callbacks.monitor.follow_plan import FollowPlan as FollowPlan
    from trainbus.callbacks.monitor.measure_goodput import MeasureGoodput as MeasureGoodput
    from trainbus.callbacks.monitor.memory_metrics import MemoryMetrics as MemoryMetrics
    from trainbus.callbacks.monitor.progress import Progress as Progress
    from trainbus.callbacks.monitor.record import Record as Record
    from trainbus.callbacks.monitor.report import Report as Report
    from trainbus.callbacks.monitor.row_files import Csv as Csv
    from trainbus.callbacks.monitor.row_files import JsonLines as JsonLines
    from trainbus.callbacks.monitor.status_file import StatusFile as StatusFile
    from trainbus.callbacks.monitor.summary import Summary as Summary
    from trainbus.callbacks.monitor.watch_callbacks import WatchCallbacks as WatchCallbacks
    from trainbus.callbacks.monitor.watch_modules import WatchModules as WatchModules
    from trainbus.callbacks.monitor.watch_numbers import WatchNumbers as WatchNumbers
    from trainbus.callbacks.monitor.watch_stalls import WatchStalls as WatchStalls
    from trainbus.callbacks.optimizer.clip_gradients import ClipAdaptively as ClipAdaptively
    from trainbus.callbacks.optimizer.clip_gradients import ClipByValue as ClipByValue
    from trainbus.callbacks.optimizer.find_learning_rate import FindLearningRate as FindLearningRate
    from trainbus.callbacks.optimizer.metric_schedule import MetricSchedule as MetricSchedule
    from trainbus.callbacks.optimizer.optimizer_in_backward import OptimizerInBackward as OptimizerInBackward
    from trainbus.callbacks.optimizer.schedule_free import ScheduleFree as ScheduleFree
    from trainbus.callbacks.parallel.data_parallel import DataParallel as DataParallel
    from trainbus.callbacks.parallel.ddp import DDP as DDP
    from trainbus.callbacks.parallel.fsdp import FSDP as FSDP
    from trainbus.callbacks.parallel.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
    from trainbus.callbacks.precision.half_evaluation import HalfEvaluation as HalfEvaluation
    from trainbus.callbacks.precision.half_weights import HalfWeights as HalfWeights
    from trainbus.callbacks.precision.mixed_precision import MixedPrecision as MixedPrecision
    from trainbus.callbacks.precision.tf32 import TF32 as TF32
    from trainbus.callbacks.stopping.early_stopping import EarlyStopping as EarlyStopping
    from trainbus.callbacks.stopping.nan_guard import NaNGuard as NaNGuard
    from trainbus.callbacks.stopping.skip_spikes import SkipSpikes as SkipSpikes
    from trainbus.callbacks.stopping.stop_at_max_steps import StopAtMaxSteps as StopAtMaxSteps
    from trainbus.callbacks.stopping.stop_at_time import StopAtTime as StopAtTime
    from trainbus.callbacks.stopping.stop_on_signal import StopOnSignal as StopOnSignal
    from trainbus.engine.api.seeding import enable_full_determinism as enable_full_determinism
    from trainbus.engine.api.seeding import set_seed as set_seed
    from trainbus.engine.api.transformers_names import as_transformers as as_transformers
    from trainbus.engine.arguments import HubStrategy as HubStrategy
    from trainbus.engine.arguments import IntervalStrategy as IntervalStrategy
    from trainbus.engine.arguments import OptimizerNames as OptimizerNames
    from trainbus.engine.arguments import ParallelMode as ParallelMode
    from trainbus.engine.arguments import SaveStrategy as SaveStrategy
    from trainbus.engine.arguments import SchedulerType as SchedulerType
    from trainbus.engine.arguments import TrainingArguments as TrainingArguments
    from trainbus.engine.arguments.cli.parser import ArgumentParser as ArgumentParser
    from trainbus.engine.arguments.cli.parser import HfArgumentParser as HfArgumentParser
    from trainbus.engine.arguments.cli.parser import PdArgumentParser as PdArgumentParser
    from trainbus.engine.arguments.seq2seq import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from trainbus.engine.checkpoint.read.listing import get_last_checkpoint as get_last_checkpoint
    from trainbus.engine.checkpoint.write.retention import Keep as Keep
    from trainbus.engine.data.collators.default import DefaultDataCollator as DefaultDataCollator
    from trainbus.engine.data.collators.default import default_data_collator as default_data_collator
    from trainbus.engine.data.collators.language_modeling import (
        DataCollatorForLanguageModeling as DataCollatorForLanguageModeling,
    )
    from trainbus.engine.data.collators.padding import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from trainbus.engine.data.collators.padding import (
        DataCollatorForTokenClassification as DataCollatorForTokenClassification,
    )
    from trainbus.engine.data.collators.padding import DataCollatorWithPadding as DataCollatorWithPadding
    from trainbus.engine.data.packing.collator import Packing as Packing
    from trainbus.engine.data.unbatched import unbatched as unbatched
    from trainbus.engine.evaluation.metric_set import Metrics as Metrics
    from trainbus.engine.evaluation.outputs import EvalLoopOutput as EvalLoopOutput
    from trainbus.engine.evaluation.outputs import EvalPrediction as EvalPrediction
    from trainbus.engine.evaluation.outputs import PredictionOutput as PredictionOutput
    from trainbus.engine.evaluation.outputs import TrainOutput as TrainOutput
    from trainbus.engine.evaluation.seq2seq import Seq2SeqTrainer as Seq2SeqTrainer
    from trainbus.engine.optim.adafactor import Adafactor as Adafactor
    from trainbus.engine.optim.schedule_functions import LinearDecayWithWarmup as LinearDecayWithWarmup
    from trainbus.engine.optim.schedule_functions import get_constant_schedule as get_constant_schedule
    from trainbus.engine.optim.schedule_functions import (
        get_constant_schedule_with_warmup as get_constant_schedule_with_warmup,
    )
    from trainbus.engine.optim.schedule_functions import (
        get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup,
    )
    from trainbus.engine.optim.schedule_functions import (
        get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
    )
    from trainbus.engine.optim.schedule_functions import (
        get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
    )
    from trainbus.engine.optim.schedule_functions import (
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    )
    from trainbus.engine.optim.schedule_functions import get_greedy_schedule as get_greedy_schedule
    from trainbus.engine.optim.schedule_functions import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
    from trainbus.engine.optim.schedule_functions import (
        get_linear_schedule_with_warmup as get_linear_schedule_with_warmup,
    )
    from trainbus.engine.optim.schedule_functions import (
        get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
    )
    from trainbus.engine.optim.schedule_functions import (
        get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule,
    )
    from trainbus.engine.optim.schedule_functions import get_wsd_schedule as get_wsd_schedule
    from trainbus.engine.optim.schedules import get_scheduler as get_scheduler
    from trainbus.engine.run import Run as Run
    from trainbus.engine.search.hyperparameters import BestRun as BestRun
    from trainbus.engine.trainer import Trainer as Trainer
    from trainbus.events.callback import Callback as Callback
    from trainbus.events.callback import TypedCallback as TypedCallback
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
    from trainbus.integrations.clearml import ClearML as ClearML
    from trainbus.integrations.comet import Comet as Comet
    from trainbus.integrations.deepspeed.callback import DeepSpeed as DeepSpeed
    from trainbus.integrations.fairscale.fsdp import FairscaleFSDP as FairscaleFSDP
    from trainbus.integrations.fairscale.sharded_ddp import ShardedDDP as ShardedDDP
    from trainbus.integrations.hub import PushToHub as PushToHub
    from trainbus.integrations.liger import Liger as Liger
    from trainbus.integrations.lightning.callback import Lightning as Lightning
    from trainbus.integrations.mlflow import MLflow as MLflow
    from trainbus.integrations.neptune import Neptune as Neptune
    from trainbus.integrations.remote import RemoteStore as RemoteStore
    from trainbus.integrations.swanlab import SwanLab as SwanLab
    from trainbus.integrations.tensorboard import TensorBoard as TensorBoard
    from trainbus.integrations.torchao import Float8 as Float8
    from trainbus.integrations.trackio import Trackio as Trackio
    from trainbus.integrations.wandb.tracker import Wandb as Wandb

_MODULES = {
    "callbacks.base.predictions": ("Predictions",),
    "callbacks.flow.checkpoint": ("Checkpoint",),
    "callbacks.flow.control_file": ("ControlFile",),
    "callbacks.flow.evaluate": ("Evaluate",),
    "callbacks.flow.keep_best": ("KeepBest",),
    "callbacks.flow.log": ("Log",),
    "callbacks.flow.report_to_trial": ("ReportToTrial",),
    "callbacks.flow.save_on_exception": ("SaveOnException",),
    "callbacks.flow.skip_batches": ("SkipBatches",),
    "callbacks.hf": (
        "DefaultFlowCallback", "EarlyStoppingCallback", "ExportableState", "PrinterCallback", "ProgressCallback",
        "TrainerCallback",
    ),
    "callbacks.model.align_tokens": ("AlignTokens",),
    "callbacks.model.chunked_cross_entropy": ("ChunkedCrossEntropy",),
    "callbacks.model.compile_model": ("Compile",),
    "callbacks.model.ema": ("EMA",),
    "callbacks.model.export_model": ("ExportModel",),
    "callbacks.model.freeze": ("Freeze",),
    "callbacks.model.gradient_checkpointing": ("GradientCheckpointing",),
    "callbacks.model.neftune": ("NEFTune",),
    "callbacks.model.offload_activations": ("OffloadActivations",),
    "callbacks.model.recurrent_memory": ("CarryPast", "RecurrentMemory"),
    "callbacks.model.swa": ("SWA",),
    "callbacks.monitor.account_time": ("AccountTime",),
    "callbacks.monitor.capsule": ("Capsule",),
    "callbacks.monitor.collect_garbage": ("CollectGarbage",),
    "callbacks.monitor.count_flops": ("CountFlops",),
    "callbacks.monitor.count_tokens": ("CountTokens",),
    "callbacks.monitor.dry_batch": ("DryBatch",),
    "callbacks.monitor.empty_cache": ("EmptyCache",),
    "callbacks.monitor.follow_plan": ("FollowPlan",),
    "callbacks.monitor.measure_goodput": ("MeasureGoodput",),
    "callbacks.monitor.memory_metrics": ("MemoryMetrics",),
    "callbacks.monitor.progress": ("Progress",),
    "callbacks.monitor.record": ("Record",),
    "callbacks.monitor.report": ("Report",),
    "callbacks.monitor.row_files": ("Csv", "JsonLines"),
    "callbacks.monitor.status_file": ("StatusFile",),
    "callbacks.monitor.summary": ("Summary",),
    "callbacks.monitor.watch_callbacks": ("WatchCallbacks",),
    "callbacks.monitor.watch_modules": ("WatchModules",),
    "callbacks.monitor.watch_numbers": ("WatchNumbers",),
    "callbacks.monitor.watch_stalls": ("WatchStalls",),
    "callbacks.optimizer.clip_gradients": ("ClipAdaptively", "ClipByValue"),
    "callbacks.optimizer.find_learning_rate": ("FindLearningRate",),
    "callbacks.optimizer.metric_schedule": ("MetricSchedule",),
    "callbacks.optimizer.optimizer_in_backward": ("OptimizerInBackward",),
    "callbacks.optimizer.schedule_free": ("ScheduleFree",),
    "callbacks.parallel.data_parallel": ("DataParallel",),
    "callbacks.parallel.ddp": ("DDP",),
    "callbacks.parallel.fsdp": ("FSDP",),
    "callbacks.parallel.sharded_optimizer": ("ShardedOptimizer",),
    "callbacks.precision.half_evaluation": ("HalfEvaluation",),
    "callbacks.precision.half_weights": ("HalfWeights",),
    "callbacks.precision.mixed_precision": ("MixedPrecision",),
    "callbacks.precision.tf32": ("TF32",),
    "callbacks.stopping.early_stopping": ("EarlyStopping",),
    "callbacks.stopping.nan_guard": ("NaNGuard",),
    "callbacks.stopping.skip_spikes": ("SkipSpikes",),
    "callbacks.stopping.stop_at_max_steps": ("StopAtMaxSteps",),
    "callbacks.stopping.stop_at_time": ("StopAtTime",),
    "callbacks.stopping.stop_on_signal": ("StopOnSignal",),
    "engine.api.seeding": ("enable_full_determinism", "set_seed"),
    "engine.api.transformers_names": ("as_transformers",),
    "engine.arguments": (
        "HubStrategy", "IntervalStrategy", "OptimizerNames", "ParallelMode", "SaveStrategy", "SchedulerType",
        "TrainingArguments",
    ),
    "engine.arguments.cli.parser": ("ArgumentParser", "HfArgumentParser", "PdArgumentParser"),
    "engine.arguments.seq2seq": ("Seq2SeqTrainingArguments",),
    "engine.checkpoint.read.listing": ("get_last_checkpoint",),
    "engine.checkpoint.write.retention": ("Keep",),
    "engine.data.collators.default": ("DefaultDataCollator", "default_data_collator"),
    "engine.data.packing.collator": ("Packing",),
    "engine.data.unbatched": ("unbatched",),
    "engine.data.collators.language_modeling": ("DataCollatorForLanguageModeling",),
    "engine.data.collators.padding": (
        "DataCollatorForSeq2Seq", "DataCollatorForTokenClassification", "DataCollatorWithPadding",
    ),
    "engine.evaluation.metric_set": ("Metrics",),
    "engine.evaluation.outputs": (
        "EvalLoopOutput", "EvalPrediction", "PredictionOutput", "TrainOutput",
    ),
    "engine.evaluation.seq2seq": ("Seq2SeqTrainer",),
    "engine.optim.adafactor": ("Adafactor",),
    "engine.optim.schedule_functions": (
        "LinearDecayWithWarmup", "get_constant_schedule", "get_constant_schedule_with_warmup",
        "get_cosine_schedule_with_warmup",
        "get_cosine_with_hard_restarts_schedule_with_warmup", "get_cosine_with_min_lr_schedule_with_warmup",
        "get_cosine_with_min_lr_schedule_with_warmup_lr_rate", "get_greedy_schedule", "get_inverse_sqrt_schedule",
        "get_linear_schedule_with_warmup", "get_polynomial_decay_schedule_with_warmup",
        "get_reduce_on_plateau_schedule", "get_wsd_schedule",
    ),
    "engine.optim.schedules": ("get_scheduler",),
    "engine.run": ("Run",),
    "engine.search.hyperparameters": ("BestRun",),
    "engine.trainer": ("Trainer",),
    "events": (
        "Callback", "Event", "Stage", "TrainbusError", "TrainerControl", "TrainerState", "Trigger",
        "TypedCallback", "at", "at_end", "every", "log_spaced", "never", "order",
    ),
}  # fmt: skip
"""Module -> the public names that it defines. A module is imported when one of its names is used."""

_EXTRAS = {
    "ClearML": "clearml", "Comet": "comet_ml", "DeepSpeed": "deepspeed", "FairscaleFSDP": "fairscale_fsdp",
    "Float8": "float8", "Liger": "liger", "Lightning": "lightning", "MLflow": "mlflow", "Neptune": "neptune",
    "PushToHub": "hub", "RemoteStore": "remote",
    "ShardedDDP": "sharded_ddp", "SwanLab": "swanlab", "TensorBoard": "tensorboard", "Trackio": "trackio",
    "Wandb": "wandb",
}  # fmt: skip
"""Class -> its name in `integrations.INTEGRATIONS`. `integrations.load` imports the class. If the package of the class
is not installed, the error of `integrations.load` names the extra to install."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]
"""The names that `from trainbus import *` imports. Integrations are left out, because their packages may be missing."""


def __getattr__(name: str) -> Any:
    if name in _EXTRAS:
        return importlib.import_module(".integrations", __name__).load(_EXTRAS[name])
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".lazy", __name__).load(_MODULE_OF[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_EXTRAS])


class _FormerFinder:
    """Finds modules under former paths, and former names in modules, for older programs. See `former.py`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(f"{__name__}.") or name in (f"{__name__}.former", f"{__name__}.former_names"):
            return None
        return importlib.import_module(".former", __name__).spec_of(name, path)


# This finder must be the first. Otherwise Python would load a submodule of a former package a second time, from the
# folder of the present package.
sys.meta_path.insert(0, _FormerFinder)
