"""Train on several GPUs from a single process: torch's DataParallel."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage

logger = logging.getLogger(__name__)


@dataclass
class DataParallel(Callback):
    """Cuts each batch into as many parts as there are GPUs, and computes the parts side by side, on copies.

    It needs no launcher. With one process for each GPU, `torchrun --nproc_per_node=N` is faster: there nothing is
    copied in each step, and no process waits for another's Python.
    """

    stage = Stage.PREPARE

    devices: int | None = None
    """How many GPUs; by default all that are visible."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DataParallel | None:
        return cls(args.n_gpu) if args.n_gpu > 1 and not args.way_to_shard else None

    def on_setup(self, run: Run) -> None:
        devices = max(1, torch.cuda.device_count()) if self.devices is None else self.devices
        if run.mode == "train":
            logger.warning(
                "One process trains on %d GPUs, in batches of %d rows. Started with torchrun --nproc_per_node=%d, it "
                "would be faster.",
                *(devices, run.args.train_batch_size, devices),
            )
            run.seams.fill("DataParallel", wrap_model=lambda model, _: SideBySide(model, devices))
        else:
            run.model_wrapped = SideBySide(run.model, devices)


class SideBySide(nn.Module):
    """A model on several GPUs; its loss has one element of each, whose mean is that of the batch."""

    gathers_losses = True

    def __init__(self, model: nn.Module, devices: int) -> None:
        """Spread `model`, which is on the first of `devices` GPUs."""
        super().__init__()
        self.devices = devices
        self.module = nn.DataParallel(model, device_ids=list(range(devices)))

    def forward(self, *inputs: Any, num_items_in_batch: Any = None, **named: Any) -> Any:
        """Call the model on each part of the batch.

        Args:
            *inputs: tensors of shape (rows, ...), or nested ones.
            num_items_in_batch: what a model divides its loss by. Each gets its part of it, so that the mean of the
                losses is their sum divided by the whole.
            **named: likewise.
        """
        if num_items_in_batch is not None:
            part = torch.as_tensor(num_items_in_batch) / self.devices
            named["num_items_in_batch"] = part.reshape(1).expand(self.devices)
        return self.module(*inputs, **named)
