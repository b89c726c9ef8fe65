"""How many samples go into one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._base import Group, arg, must


@dataclass(kw_only=True)
class BatchArguments(Group):
    """How many samples go into one step: batch size x accumulated batches x processes."""

    per_device_train_batch_size: int = arg(8, "Samples in a training batch, on each device.")
    per_device_eval_batch_size: int = arg(8, "Samples in an evaluation or prediction batch, on each device.")
    gradient_accumulation_steps: int = arg(
        1,
        "Batches whose gradients add up to one optimizer step, which is what logs, evaluations and saves count.",
    )
    auto_find_batch_size: bool = arg(
        False,
        "Whether training starts over with a batch nine tenths the size when memory does not hold one; of several "
        "processes, the one that ran out says so and the run ends.",
    )
    average_tokens_across_devices: bool = arg(
        True, "Whether a loss averaged over tokens counts those of all processes, rather than each process its own."
    )

    @property
    def train_batch_size(self) -> int:
        """Samples in a training batch of this process, for all devices that it drives."""
        return self.per_device_train_batch_size * self._devices

    @property
    def eval_batch_size(self) -> int:
        """Samples in an evaluation batch of this process, for all devices that it drives."""
        return self.per_device_eval_batch_size * self._devices

    @property
    def _devices(self) -> int:
        whole: Any = self  # of which another group knows the devices
        return max(1, int(whole.n_gpu))

    def problems(self) -> Iterator[str]:
        sizes = ("per_device_train_batch_size", "per_device_eval_batch_size")
        yield from must(self, lambda n: n >= 1, "give at least 1 sample.", *sizes)
        yield from must(
            self, lambda n: n >= 1, "give at least 1 batch, which is none extra.", "gradient_accumulation_steps"
        )
