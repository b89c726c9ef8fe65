"""Accelerator: the methods of accelerate's class that training steps call."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...events.errors import ArgumentError
from ..data.batches import map_tensors
from ..run import Run
from ..stepper import Stepper


@dataclass(frozen=True)
class Accelerator:
    """Calls the run and the stepper. It has no state of its own."""

    run: Run
    """The run."""
    stepper: Stepper | None
    """The stepper; None before training."""

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Backpropagate the loss of a batch. Announces `on_loss`; float16 scales the loss.

        As in transformers, it does not divide the loss by the accumulation steps. The training step does that.

        Args:
            loss: a tensor with one element.
            **options: options of `torch.Tensor.backward`, such as `retain_graph`.

        Raises:
            ArgumentError: outside of a training step.
        """
        self._during_training("backward").backward(loss, **options)

    @property
    def sync_gradients(self) -> bool:
        """Whether the current batch is the last of its step."""
        return self._during_training("sync_gradients").completing

    def _during_training(self, what: str) -> Stepper:
        if self.stepper is None or self.run.mode != "train":
            raise ArgumentError(
                f"`accelerator.{what}` works only during a training step, and no training is in progress. Override "
                "`training_step` and call it there."
            )
        return self.stepper

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self.run.device

    @property
    def num_processes(self) -> int:
        """The world size."""
        return self.run.ranks.world_size

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self.run.ranks.rank

    @property
    def local_process_index(self) -> int:
        """The local rank of this process."""
        return self.run.ranks.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.run.ranks.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is local rank 0."""
        return self.run.ranks.local_rank == 0

    def unwrap_model(self, model: nn.Module, **options: Any) -> nn.Module:
        """Return the user's model for the wrapped model, and any other model unchanged. Options have no effect."""
        return self.run.model if model is self.run.model_wrapped else model

    def gather(self, tensor: Any) -> Any:
        """Return nested tensors of all ranks, concatenated along the first dimension. Shapes must be equal."""
        return map_tensors(self.run.ranks.gather, tensor)

    def gather_for_metrics(self, tensor: Any) -> Any:
        """Gather tensors with any number of samples. A shorter second dimension is padded with -100.

        With several ranks, the result includes the samples that fill up the last batch, at the end.
        """
        return map_tensors(self.run.ranks.gather_padded, tensor) if self.num_processes > 1 else tensor

    def wait_for_everyone(self) -> None:
        """Wait for all ranks."""
        self.run.ranks.barrier()

    def print(self, *values: Any, **options: Any) -> None:
        """Print on local rank 0."""
        if self.is_local_main_process:
            print(*values, **options)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the run; it does nothing without mixed precision."""
        return self.run.seams.autocast()
