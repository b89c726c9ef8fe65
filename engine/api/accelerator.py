"""The accelerator that steps written for transformers speak to, over the run that does the work."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...events.errors import ArgumentError
from ..data.batches import map_tensors
from ..run import Run

if TYPE_CHECKING:
    from ..stepper import Stepper


@dataclass(frozen=True)
class Accelerator:
    """What subclasses use of accelerate's class of this name. It has no state: each is as good as the other."""

    run: Run
    """The run that is asked."""
    stepper: Stepper | None
    """What makes the steps; None before training."""

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Backpropagate the loss of a batch: `on_loss` is announced, and half precision scales it.

        As with transformers, it is not divided by the batches of a step that accumulates: the step does that itself.

        Args:
            loss: a tensor with one element.
            **options: for `torch.Tensor.backward`, as `retain_graph`.

        Raises:
            ArgumentError: outside of a training step.
        """
        self._during_training("backward").backward(loss, **options)

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch in work is the last of its step."""
        return self._during_training("sync_gradients").completing

    def _during_training(self, what: str) -> Stepper:
        if self.stepper is None or self.run.mode != "train":
            raise ArgumentError(
                f"`accelerator.{what}` belongs into a training step, and no training is under way: override "
                "`training_step`, and call it there."
            )
        return self.stepper

    @property
    def device(self) -> torch.device:
        """Where the batches go."""
        return self.run.device

    @property
    def num_processes(self) -> int:
        """How many processes train together."""
        return self.run.ranks.world_size

    @property
    def process_index(self) -> int:
        """The number of this one."""
        return self.run.ranks.rank

    @property
    def local_process_index(self) -> int:
        """Its number on its machine."""
        return self.run.ranks.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether it is the first of all."""
        return self.run.ranks.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether it is the first of its machine."""
        return self.run.ranks.local_rank == 0

    def unwrap_model(self, model: nn.Module, **options: Any) -> nn.Module:
        """Return the model as the user gave it, for the wrapped one; any other as it is. Options change nothing."""
        return self.run.model if model is self.run.model_wrapped else model

    def gather(self, tensor: Any) -> Any:
        """Return tensors of all processes, of equal shape, joined along their first dimension; nested ones too."""
        return map_tensors(self.run.ranks.gather, tensor)

    def gather_for_metrics(self, tensor: Any) -> Any:
        """Gather tensors of any number of rows; what is shorter along the second dimension is padded with -100.

        Where several processes evaluate, rows that fill up the last batch are among them, behind the others.
        """
        return map_tensors(self.run.ranks.gather_padded, tensor) if self.num_processes > 1 else tensor

    def wait_for_everyone(self) -> None:
        """Wait until all processes are here."""
        self.run.ranks.barrier()

    def print(self, *values: Any, **options: Any) -> None:
        """Print, on the first process of each machine."""
        if self.is_local_main_process:
            print(*values, **options)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which the run computes: half precision where a callback says so, else nothing."""
        return self.run.seams.autocast()
