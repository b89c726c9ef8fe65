"""The parts of a run that the modules of this folder read, as protocols. So no module here imports `engine.run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ...events.activity import Activity
from ...events.bus import EventBus
from ...events.state import TrainerState
from ..arguments import TrainingArguments
from .ranks import Ranks


class DistributedRun(Protocol):
    """The attributes of a run that the modules of this folder read. `engine.run.Run` implements this protocol."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments."""
        ...

    @property
    def state(self) -> TrainerState:
        """The progress of the run."""
        ...

    @property
    def bus(self) -> EventBus:
        """The event bus of the trainer."""
        ...

    @property
    def plugins(self) -> Sequence[str]:
        """One line of text for each plugin that is attached, and for each plugin that a setting left out."""
        ...

    @property
    def ranks(self) -> Ranks:
        """This process and the other ranks."""
        ...

    @property
    def activity(self) -> Activity:
        """The activity of this process."""
        ...


class RunLength(Protocol):
    """The length of a run. `engine.data.plan.RunPlan` implements this protocol."""

    @property
    def num_examples(self) -> int:
        """The number of samples of the train dataset."""
        ...

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches of an epoch on one rank."""
        ...

    @property
    def max_steps(self) -> int:
        """The number of steps of the run."""
        ...


class PreparedRun(DistributedRun, Protocol):
    """A run that has its loader, optimizer and schedule. `engine.run.Run` implements this protocol."""

    @property
    def plan(self) -> RunLength | None:
        """The length of the run; None outside of training."""
        ...

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training batches."""
        ...

    @property
    def optimizer(self) -> Any:
        """The optimizer."""
        ...

    @property
    def lr_scheduler(self) -> Any:
        """The learning-rate schedule."""
        ...
