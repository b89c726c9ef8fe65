"""The optimizers and schedules known by name."""

from __future__ import annotations

OPTIMIZERS = (
    "adamw_torch_fused",
    "adamw_torch",
    "adamw",
    "adamw_hf",
    "adafactor",
    "sgd",
    "adagrad",
    "rmsprop",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "lion_32bit",
    "lion_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "ademamix",
    "ademamix_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "rmsprop_bnb",
    "rmsprop_bnb_32bit",
    "rmsprop_bnb_8bit",
    "adamw_torch_8bit",
    "adamw_torch_4bit",
    "adamw_anyprecision",
    "grokadamw",
    "stable_adamw",
    "schedule_free_adamw",
    "schedule_free_radam",
    "schedule_free_sgd",
    "galore_adamw",
    "galore_adamw_8bit",
    "galore_adafactor",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "apollo_adamw",
    "apollo_adamw_layerwise",
    "lomo",
    "adalomo",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
)
"""What `optim` takes."""

SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
    "greedy",
)
"""What `lr_scheduler_type` takes."""

METRIC_SCHEDULES = ("reduce_lr_on_plateau", "greedy")
"""Those among the schedules that move when a metric does, and so need evaluations."""
