"""Names of optimizers and schedules.

The tables in `engine.optim` decide which names are valid. The enums list the names that transformers also has, so that
editors can complete the names. A name without an enum member is a plain string.
"""

from __future__ import annotations

from ..optim import registry, schedules
from ._base import Strategy


class OptimizerNames(Strategy):
    """Names for `optim`. Members have the same names as in transformers."""

    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH = "adamw_torch"
    ADAMW = "adamw"
    ADAMW_HF = "adamw_hf"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    ADAGRAD = "adagrad"
    RMSPROP = "rmsprop"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    LION = "lion_32bit"
    LION_8BIT = "lion_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    ADEMAMIX = "ademamix"
    ADEMAMIX_8BIT = "ademamix_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    GROKADAMW = "grokadamw"
    STABLE_ADAMW = "stable_adamw"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    LOMO = "lomo"
    ADALOMO = "adalomo"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"


class SchedulerType(Strategy):
    """Names for `lr_scheduler_type`. Members have the same names as in transformers."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    GREEDY = "greedy"


OPTIMIZERS = tuple(registry.OPTIMIZERS)
"""All names for `optim`."""

SCHEDULES = tuple(schedules.SCHEDULES)
"""All names for `lr_scheduler_type`."""

METRIC_SCHEDULES = tuple(name for name in SCHEDULES if name in schedules.METRIC_SCHEDULES)
"""Names of the schedules that follow a metric, and therefore need evaluations."""

TRACKER_PACKAGES = {
    **{name: name for name in ("wandb", "tensorboard", "trackio", "mlflow")},
    **{"jsonl": "", "csv": ""},
    **{name: name for name in ("comet_ml", "neptune", "clearml", "swanlab")},
}
"""Name of a tracker in `report_to` -> the package that the tracker needs; empty if it needs none. The registry of the
integrations has the same rows."""

TRACKER_ALIASES = {"comet": "comet_ml"}
"""Alias of a tracker in `report_to` -> the name of the tracker."""
