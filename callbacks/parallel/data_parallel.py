"""Train on several GPUs from a single process: torch's DataParallel."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel.replicate import replicate

from ...engine.arguments import TrainingArguments
from ...engine.data.batches import rows_of
from ...engine.distributed.strategies import Strategy
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage
from ..model.chunked_cross_entropy import ChunkedCrossEntropy
from ..model.compile_model import Compile
from ..model.forwards import use_own_weights
from ..model.gradient_checkpointing import GradientCheckpointing
from ..model.offload_activations import OffloadActivations
from ..model.recurrent_memory import RecurrentMemory

logger = logging.getLogger(__name__)


@dataclass
class DataParallel(Callback):
    """Splits each batch over the GPUs of one process. Each GPU computes its part with a copy of the model.

    A trainer has this callback if the program sees several GPUs and no launcher started the program. One rank per GPU
    is faster, because no step copies the model, and each GPU has a Python process. To start one rank per GPU, use
    `torchrun --nproc_per_node=N`.

    Raises:
        ArgumentError: if `devices` is below 1.
    """

    stage = Stage.PREPARE

    devices: int | None = None
    """The number of GPUs. None: all visible GPUs."""

    def __post_init__(self) -> None:
        if self.devices is not None and not self.devices >= 1:
            raise ArgumentError(f"DataParallel(devices={self.devices}): set a number of GPUs of 1 or more.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DataParallel | None:
        return cls(args.n_gpu) if args.n_gpu > 1 and args.sharding_strategy is Strategy.DDP else None

    def conflict_with(self, other: Callback) -> str:
        return (self.conflict_with_forwards() if _replaces_forward(other) else "") or super().conflict_with(other)

    def conflict_with_forwards(self) -> str:
        """Return why the callback does not work with a callback that replaces the forward of modules.

        The text is empty if there is only one GPU.
        """
        if self._count() == 1:
            return ""
        return (
            "its replacement of a forward computes with the weights of the first GPU, and the copies on the other "
            "GPUs have their own. Start one rank per GPU with `torchrun`, or set CUDA_VISIBLE_DEVICES to one GPU."
        )

    def _count(self) -> int:
        return max(1, torch.cuda.device_count()) if self.devices is None else self.devices

    def on_setup(self, run: Run) -> None:
        devices = self._count()
        if run.mode == "train":
            logger.warning(
                "One process trains on %d GPUs, in batches of %d samples. `torchrun --nproc_per_node=%d` is faster.",
                devices,
                run.args.train_batch_size,
                devices,
            )
            run.seams.fill("DataParallel", wrap_model=lambda model, _: DataParallelModel(model, devices))
        else:
            run.wrap(DataParallelModel(run.model, devices))


def _replaces_forward(callback: Callback) -> bool:
    """Return whether a callback replaces the forward of modules by code that the copies on other GPUs cannot run."""
    if isinstance(callback, GradientCheckpointing):
        return bool(callback.blocks)
    return isinstance(callback, (ChunkedCrossEntropy, Compile, OffloadActivations, RecurrentMemory))


class DataParallelModel(nn.Module):
    """A model with copies on several GPUs. Its loss has one element per GPU. The loss of the batch is their mean."""

    gathers_losses = True

    def __init__(self, model: nn.Module, devices: int) -> None:
        """Wrap a model.

        Args:
            model: the model. Its weights are on the first GPU.
            devices: the number of GPUs.
        """
        super().__init__()
        self.devices = devices
        self.module = nn.DataParallel(model, device_ids=list(range(devices)))
        vars(self.module)["replicate"] = self._replicate

    @staticmethod
    def _replicate(module: nn.Module, devices: Any) -> list[Any]:
        """Return a copy of the module on each GPU, as the method of torch does."""
        copies = replicate(module, devices, not torch.is_grad_enabled())
        for copy in copies:
            use_own_weights(copy)
        return copies

    def forward(self, *inputs: Any, num_items_in_batch: Any = None, **named: Any) -> Any:
        """Call the model on each part of the batch.

        Args:
            *inputs: tensors of shape (samples, ...), possibly in nested lists, tuples or dicts.
            num_items_in_batch: the number that the model divides its loss by. If `n` GPUs get samples, each of
                them divides by an `n`-th of this number. The mean of their losses is then the loss of the whole batch.
                None: the model chooses the divisor.
            **named: keyword inputs, of the same form as `inputs`.
        """
        if num_items_in_batch is not None:
            parts = self._parts(rows_of([*inputs, *named.values()]))
            part = torch.as_tensor(num_items_in_batch) / parts
            named["num_items_in_batch"] = part.reshape(1).expand(parts)
        return self.module(*inputs, **named)

    def _parts(self, rows: int | None) -> int:
        """Return the number of GPUs that get samples of a batch. If the batch is small, some GPUs get no sample."""
        return self.devices if not rows else len(range(0, rows, math.ceil(rows / self.devices)))
