"""What every part of the Trainer's surface stands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ...events.bus import EventBus
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.state import TrainerState
from ..arguments import TrainingArguments
from ..loss.objective import Objective
from ..run import Run


class Surface:
    """The parts of a run under the names that programs of this family use."""

    args: TrainingArguments
    run: Run
    bus: EventBus
    objective: Objective
    loss_takes_items = True
    """Whether `compute_loss` divides by the items of the whole step; one that is not told them cannot."""
    loss_is_scaled_for_ga: bool | None = None
    """Whether the loss is divided by the batches of its step already; None to judge by how it is computed."""
    _objective_settings: Mapping[str, Any] = {}
    """What a subclass set of the objective."""

    @property
    def state(self) -> TrainerState:
        """How far the run is."""
        return self.run.state

    @property
    def control(self) -> TrainerControl:
        """What callbacks ask for."""
        return self.run.control

    @control.setter
    def control(self, control: TrainerControl) -> None:
        if control is not self.run.control:
            raise ArgumentError("A run has one control, which cannot be replaced: set its flags, or request and veto.")

    @property
    def model(self) -> nn.Module:
        """The model as the user gave it."""
        return self.run.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if self.run.mode:
            raise ArgumentError(f"The model cannot be replaced while the run is to {self.run.mode}.")
        self._adopt(model.to(self.args.device))

    def _adopt(self, model: nn.Module) -> None:
        """Take a model as the one of the run."""
        raise NotImplementedError

    @property
    def model_wrapped(self) -> nn.Module:
        """The model as it is called: inside DDP and the like, where one is used."""
        return self.run.model_wrapped

    @property
    def processing_class(self) -> Any:
        """The tokenizer or processor that belongs to the model."""
        return self.run.processing_class

    tokenizer = processing_class

    @property
    def optimizer(self) -> Any:
        """The optimizer; None before training."""
        return self.run.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self.run.optimizer = optimizer

    @property
    def lr_scheduler(self) -> Any:
        """The learning-rate schedule; None before training."""
        return self.run.lr_scheduler

    @lr_scheduler.setter
    def lr_scheduler(self, scheduler: Any) -> None:
        self.run.lr_scheduler = scheduler

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training batches; None before training."""
        return self.run.train_dataloader
