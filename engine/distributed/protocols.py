"""The parts of a run that the modules of this folder read. `Run` has all of them. No module here imports `Run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ...events.activity import Activity
from ...events.bus import EventBus
from ...events.state import TrainerState
from ..arguments import TrainingArguments
from .ranks import Ranks


class DistributedRun(Protocol):
    """A run on one of several ranks."""

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
    """The length of a run."""

    @property
    def num_examples(self) -> int:
        """Samples of the train dataset."""
        ...

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch on one rank."""
        ...

    @property
    def max_steps(self) -> int:
        """Steps of the run."""
        ...


class PreparedRun(DistributedRun, Protocol):
    """A run whose loader, optimizer and schedule exist."""

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
