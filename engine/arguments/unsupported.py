"""What other trainers take and this one does not, with what to do instead. One table for errors and for the docs."""

from __future__ import annotations

from typing import Any

_NO_APEX = "apex is no longer maintained: leave it out, and torch's own mixed precision is used."

VALUES: dict[tuple[str, str], str] = {
    ("train_sampling_strategy", "batch_rebalance"): (
        "rows are not dealt out by their length; 'group_by_length' puts rows of similar length together, which saves "
        "padding on every process."
    ),
    ("fp16_opt_level", "O3"): (
        "updates smaller than half precision can hold would be lost; 'O2' keeps the weights in it, with float32 copies "
        "for the optimizer."
    ),
    ("fp16_backend", "apex"): _NO_APEX,
    ("half_precision_backend", "apex"): _NO_APEX,
    ("report_to", "visualdl"): (
        "VisualDL is PaddlePaddle's; 'tensorboard' draws the same curves, and any other tracker is a callback with "
        "`on_log`."
    ),
}
"""(argument, value that is refused) -> why, and what to do instead."""

ARGUMENTS: dict[str, str] = {
    "parallelism_config": (
        "an object of accelerate, for tensor and sequence parallelism, which are not done here; `fsdp`, `sharding` and "
        "`deepspeed` split weights, gradients and optimizer states, and `trainbus plan` says which of them is enough."
    ),
}
"""Argument that is refused, unless it is None -> why, and what to do instead."""


def instead(name: str, value: Any) -> str:
    """Return, to be put after an error about a value, what to do instead; empty for one that nobody takes."""
    remedy = VALUES.get((name, value), "") if isinstance(value, str) else ""
    return f" Left out: {remedy}" if remedy else ""
