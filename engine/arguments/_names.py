"""The optimizers and schedules known by name."""

from __future__ import annotations

OPTIMIZERS = (
    "adamw_torch_fused",
    "adamw_torch",
    "adamw",  # the same as adamw_torch
    "sgd",
    "adagrad",
    "rmsprop",
    "adafactor",
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
