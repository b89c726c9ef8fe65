"""The table of arguments and values that other trainers accept, but trainbus does not.

Each entry has the reason and an alternative.
"""

from __future__ import annotations

import re
from typing import Any

_NO_APEX = "apex is no longer maintained. Remove the argument to use PyTorch's own mixed precision."
_NO_ACCELERATOR = "only CUDA GPUs and CPUs are supported. Use 'gpu' or 'cpu'."
_ONE_GPU = "the environment selects the GPU. Use 'gpu'. To select GPU 0, start the program with CUDA_VISIBLE_DEVICES=0."

UNSUPPORTED: dict[tuple[str, str | None], str] = {
    ("train_sampling_strategy", "batch_rebalance"): (
        "samples cannot be distributed over the ranks by length. Use 'group_by_length', which puts samples of similar "
        "length into one batch."
    ),
    ("fp16_opt_level", "O3"): (
        "small updates would be lost in half precision. Use 'O2', which keeps float32 copies of the weights for the "
        "optimizer."
    ),
    ("fp16_backend", "apex"): _NO_APEX,
    ("half_precision_backend", "apex"): _NO_APEX,
    ("device", "xpu"): _NO_ACCELERATOR,
    ("device", "npu"): _NO_ACCELERATOR,
    ("device", "gpu:N"): _ONE_GPU,
    ("device", "cuda:N"): _ONE_GPU,
    ("report_to", "visualdl"): (
        "VisualDL belongs to PaddlePaddle. Use 'tensorboard'. The event files of TensorBoard have the same curves."
    ),
    ("parallelism_config", None): (
        "tensor and sequence parallelism are not available. Use `fsdp`, `sharding` or `deepspeed`. The command "
        "`trainbus plan` estimates which of these three fits in memory."
    ),
}
"""(argument, refused value) -> reason and alternative. The key (argument, None) refuses every value except None. In a
value, `:N` stands for a colon and any number."""


def unsupported_arguments() -> dict[str, str]:
    """Return the reason and the alternative for each argument that trainbus never supports, by argument name."""
    return {name: reason for (name, value), reason in UNSUPPORTED.items() if value is None}


def unsupported_values() -> dict[tuple[str, str], str]:
    """Return the reason and the alternative for each unsupported value. Each key is an argument name and a value."""
    return {(name, value): reason for (name, value), reason in UNSUPPORTED.items() if value is not None}


def reason_against(name: str, value: Any) -> str:
    """Return the reason and the alternative for a value that is not supported, to append to an error message.

    For any other value, return an empty string.
    """
    reason = UNSUPPORTED.get((name, re.sub(r":\d+$", ":N", value)), "") if isinstance(value, str) else ""
    return f" Not supported: {reason}" if reason else ""
