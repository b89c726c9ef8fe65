"""The parts of a run that checkpoints read and write, as protocols. `engine.run.Run` has these parts.

Because of the protocols, no module of this folder imports `engine.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ...events.activity import Activity
from ...events.bus import EventBus
from ...events.control import TrainerControl
from ...events.state import TrainerState
from ..arguments import TrainingArguments
from ..data.plan import RunPlan
from ..data.position import Position, Sizes
from ..data.workers.persistent import PersistentLoaders
from ..distributed.ranks import Ranks
from ..seams import Seams

STATE_WRITERS = ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state")
"""The methods of the Trainer that add files to a checkpoint, if a subclass overrides them."""


class ModelWriter(Protocol):
    """Writes the model of a run."""

    def save_model(self, output_dir: str) -> None:
        """Write the model, with its config and tokenizer, into a folder."""

    def at(self, moment: str, work: Callable[[], Any], *arguments: Any) -> Any:
        """Call `work`. If a subclass of the Trainer overrides the method named `moment`, call the override instead.

        The override receives `arguments`. It can do the default work through `super()`.
        """

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Copy each weight with `copy(name, weight)`. Return a function that writes the copies into a folder later.

        Return None if the model cannot be written later.
        """


class StatefulLosses(Protocol):
    """The loss sums of a run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums."""


class RestorableCallbacks(Protocol):
    """The callbacks of a run."""

    def exported(self) -> dict[str, Any]:
        """Return the states of attached callbacks that have transformers' ExportableState interface, by class name."""

    def owners(self) -> dict[str, Any]:
        """Return which callback each state belongs to, by id."""

    def forget_carried(self) -> None:
        """Drop the states that the last resume loaded and that no callback received."""

    def restore(self, states: Mapping[str, Any], owners: Mapping[str, Any] | None = None) -> None:
        """Give each callback its state."""

    def refuse_other_weights(self, owners: Mapping[str, Any], path: Path, *, restores: bool) -> None:
        """Raise an error if the run would continue from other weights than the trained ones."""


class SavingRanks(Protocol):
    """The ranks that write a checkpoint together."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def single_process(self) -> bool:
        """Whether this is the only process."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank."""


class SavableRun(Protocol):
    """The attributes of a run that saving reads."""

    @property
    def callback_states(self) -> RestorableCallbacks:
        """The states of the callbacks."""

    @property
    def bus(self) -> EventBus:
        """The bus, with the attached callbacks."""

    @property
    def eval_loaders(self) -> PersistentLoaders:
        """The evaluation loaders with persistent workers."""

    @property
    def activity(self) -> Activity:
        """The activity of this process, for error reports."""

    @property
    def run_id(self) -> str:
        """The name of the run."""

    @property
    def position(self) -> Position | None:
        """The position of the run in the data."""

    @property
    def plan(self) -> RunPlan | None:
        """The length of the run."""

    @property
    def grad_norm(self) -> Any:
        """The gradient norm of the last step."""

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the last step."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments."""

    @property
    def state(self) -> TrainerState:
        """The trainer state."""

    @property
    def control(self) -> TrainerControl:
        """The control, with the ledger."""

    @property
    def ranks(self) -> Ranks:
        """The process group."""

    @property
    def services(self) -> ModelWriter:
        """The object that writes the model."""

    @property
    def seams(self) -> Seams:
        """The seams of the step."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def optimizer(self) -> Any:
        """The optimizer."""

    @property
    def lr_scheduler(self) -> Any:
        """The learning-rate schedule."""

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training batches."""

    @property
    def losses(self) -> StatefulLosses:
        """The loss sums."""

    @property
    def sizes(self) -> Sizes:
        """The sizes of batches and steps."""

    @property
    def data_seed(self) -> int | None:
        """The seed of the data order."""

    def rng_states(self) -> dict[str, Any]:
        """Return the RNG states, including those of generators in dataset, collator and sampler."""

    def restore_rng(self, states: Mapping[str, Any]) -> None:
        """Restore what `rng_states` returned."""

    def seconds(self) -> float:
        """Return the seconds spent training."""


class ResumableRun(SavableRun, Protocol):
    """The attributes of a run that resuming reads and sets."""

    run_id: str

    @property
    def randomness(self) -> dict[str, Any]:
        """The RNG states that a resumed run restores with its first batch; an empty dict in a fresh run."""

    def continue_from(self, rng_states: dict[str, Any]) -> None:
        """Restore these RNG states before the next batch is taken."""

    def restore_step(self, last: Mapping[str, Any]) -> None:
        """Restore gradient norm and learning rate of the last step."""

    def set_checkpoint(self, checkpoint: Any) -> None:
        """Set `run.checkpoint` to the checkpoint that was restored."""

    @property
    def callback_states(self) -> RestorableCallbacks:
        """The states of the callbacks."""

    @property
    def train_batch_size(self) -> int:
        """Samples in a training batch of this rank."""

    def announce(self, event: str) -> None:
        """Announce an event."""


class ResumableFeed(Protocol):
    """The methods of the feed of batches that resuming calls."""

    def resume(self, place: dict[str, Any], restore_rng: Callable[[], None], restore_late: bool, /) -> None:
        """Make the feed start its next epoch at a saved position of the data loader, with the saved RNG states.

        Args:
            place: the position; an empty dict if it is unknown.
            restore_rng: a function that restores the RNG states. The feed calls it once.
            restore_late: whether the feed calls `restore_rng` after it takes the batches of the first step, as
                transformers does, and not before. At the start of an epoch, this setting has no effect.
        """
