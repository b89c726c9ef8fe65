"""TrainerBase: the run's parts under the attribute names of transformers' Trainer."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...events.bus import EventBus
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.state import TrainerState
from ..arguments import TrainingArguments
from ..run import Run


class TrainerBase:
    """What every group of the Trainer's methods uses."""

    args: TrainingArguments
    run: Run
    bus: EventBus

    @property
    def state(self) -> TrainerState:
        """The progress of the run."""
        return self.run.state

    @property
    def control(self) -> TrainerControl:
        """The flags that callbacks raise."""
        return self.run.control

    @control.setter
    def control(self, control: TrainerControl) -> None:
        if control is not self.run.control:
            raise ArgumentError("The control of a run cannot be replaced. Set its flags, or call request and veto.")

    @property
    def model(self) -> nn.Module:
        """The user's model, unwrapped."""
        return self.run.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if self.run.mode:
            raise ArgumentError(f"The model cannot be replaced during {self.run.mode}(). Replace it before or after.")
        self._use_model(model.to(self.args.device))

    def _use_model(self, model: nn.Module) -> None:
        """Make a model the model of the run."""
        raise NotImplementedError

    @property
    def model_wrapped(self) -> nn.Module:
        """The model that is called: wrapped by DDP, FSDP or another wrapper if one is used."""
        return self.run.model_wrapped

    @property
    def processing_class(self) -> Any:
        """The tokenizer or processor of the model."""
        return self.run.processing_class

    tokenizer = processing_class

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training batches; None before training."""
        return self.run.train_dataloader

    @property
    def is_in_train(self) -> bool:
        """Whether a training is in progress."""
        return self.run.mode == "train"

    def is_local_process_zero(self) -> bool:
        """Return whether this process has local rank 0."""
        return self.run.ranks.local_rank == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this process has rank 0."""
        return self.run.ranks.rank == 0
