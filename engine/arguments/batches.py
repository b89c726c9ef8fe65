"""Batch sizes and gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._base import Group, arg, must


@dataclass(kw_only=True)
class BatchArguments(Group):
    """Batch sizes and gradient accumulation. Samples per step = batch size x accumulated batches x devices."""

    per_device_train_batch_size: int = arg(8, "Samples per training batch on each device.")
    per_device_eval_batch_size: int = arg(8, "Samples per evaluation or prediction batch on each device.")
    gradient_accumulation_steps: int = arg(
        1,
        "Batches per optimizer step; their gradients are accumulated. Logs, evaluations and saves count optimizer "
        "steps.",
    )
    auto_find_batch_size: bool = arg(
        False,
        "If a batch does not fit into memory, start training again with a batch size reduced to nine tenths. With "
        "several processes the run ends instead, with an error that names the rank that ran out of memory. Does not "
        "work with `optimizers`; use `optimizer_cls_and_kwargs`.",
    )
    average_tokens_across_devices: bool = arg(
        True, "Average the loss over the tokens of all processes. False: each process averages over its own tokens."
    )

    @property
    def train_batch_size(self) -> int:
        """Samples per training batch of this process, over all devices that it uses."""
        return self.per_device_train_batch_size * self._devices

    @property
    def eval_batch_size(self) -> int:
        """Samples per evaluation batch of this process, over all devices that it uses."""
        return self.per_device_eval_batch_size * self._devices

    @property
    def _devices(self) -> int:
        args: Any = self  # another group declares `n_gpu`
        return max(1, int(args.n_gpu))

    def problems(self) -> Iterator[str]:
        sizes = ("per_device_train_batch_size", "per_device_eval_batch_size")
        yield from must(self, lambda n: n >= 1, "set it to 1 sample or more.", *sizes)
        yield from must(
            self, lambda n: n >= 1, "set it to 1 or more; 1 accumulates nothing.", "gradient_accumulation_steps"
        )
