"""The other names that arguments go by: older ones, and those of other trainers. One table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


def _unchanged(value: Any) -> Any:
    return value


class Alias(NamedTuple):
    """What another name stands for."""

    new: str
    """The argument's name here."""
    translate: Callable[[Any], Any] = _unchanged
    """From a value under the other name to the value here."""
    outdated: bool = True
    """Whether to warn. Not where Transformers itself prefers the other name: its users would be warned both ways."""


ALIASES: dict[str, Alias] = {
    "activation_checkpointing": Alias("gradient_checkpointing", outdated=False),
    "activation_checkpointing_kwargs": Alias("gradient_checkpointing_kwargs", outdated=False),
    "evaluation_strategy": Alias("eval_strategy"),
    "no_cuda": Alias("use_cpu"),
    "per_gpu_eval_batch_size": Alias("per_device_eval_batch_size"),
    "per_gpu_train_batch_size": Alias("per_device_train_batch_size"),
    "recompute": Alias("gradient_checkpointing"),
}
"""Other name -> what it stands for."""
