"""The parts of a run that checkpoints read and set, as protocols. So no module of this folder imports `engine.run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
"""The Trainer methods that a subclass may override to add files to a checkpoint. Their defaults write nothing."""


class ModelWriter(Protocol):
    """Writes the model of a run. `TrainerServices` implements this protocol."""

    def save_model(self, output_dir: str) -> None:
        """Write the model, with its config and tokenizer, into a folder."""

    def at(self, moment: str, work: Callable[[], Any], *arguments: Any) -> Any:
        """Call the override of the Trainer method `moment`, such as `_save_scaler`. Without an override, call `work`.

        Return the result of the call. The override receives `arguments`; `work` receives nothing. An override that
        calls `super()` calls `work`.
        """

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Copy the weights now. Return a function that later writes the copies into a folder.

        The argument `copy` receives the name of a weight and the weight, and returns a copy of the weight.
        Return None if the run can only write the current weights of the model.
        """


class RunServices(ModelWriter, Protocol):
    """The methods of the trainer that a resume calls. `TrainerServices` implements this protocol."""

    def parameter_groups(
        self, model: nn.Module, weight_decay: float, always_split: bool = False
    ) -> list[dict[str, Any]]:
        """Build the parameter groups of the trainer's own optimizer, and those of a loss module."""


class StatefulLosses(Protocol):
    """The sums of the training losses, for logs and the summary. `Losses` implements this protocol."""

    def state_dict(self) -> dict[str, Any]:
        """Return the loss sums as a dict for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss sums from the result of `state_dict`. An empty dict leaves the sums unchanged."""


class RestorableCallbacks(Protocol):
    """The states of the callbacks of a run. `CallbackStates` implements this protocol."""

    def exported(self) -> dict[str, Any]:
        """Return the states of callbacks with transformers' `ExportableState`, by class name, for the trainer state."""

    def owners(self) -> dict[str, Any]:
        """Return class, settings and state version of each callback that has a state, by callback id."""

    def forget_carried(self) -> None:
        """Drop the carried states. Later checkpoints do not have these states."""

    def restore(self, states: Mapping[str, Any], owners: Mapping[str, Any] | None = None) -> None:
        """Load each callback state into its callback.

        `CallbackStates.restore` describes the parameters.
        """

    def refuse_other_weights(self, owners: Mapping[str, Any], path: Path, *, restores: bool) -> None:
        """Raise a CheckpointError if the run would continue from other weights than the trained weights.

        Example: the model file has the averaged weights of the callback EMA, and no callback restores the trained ones.
        `CallbackStates.refuse_other_weights` describes the parameters.
        """


class SavingRanks(Protocol):
    """The ranks that write a checkpoint together. `Ranks` and `ThreadGroup` implement this protocol."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def single_process(self) -> bool:
        """Whether this is the only process."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank."""


@runtime_checkable
class WritesLater(Protocol):
    """A callback that writes, copies or pushes on a thread. The end of a training waits for this thread."""

    @property
    def slowest_write(self) -> float:
        """The longest time that the end of the training may wait for the thread, in seconds.

        The value is the time of the slowest write so far, including the write that runs now. If the end of a training
        waits for several writes, the value is this time multiplied by the number of these writes.
        """

    @property
    def busy(self) -> bool:
        """Whether a write is in progress."""


class SavableRun(Protocol):
    """The attributes of a run that a save reads. `engine.run.Run` implements this protocol."""

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
        """The id of the run."""

    @property
    def position(self) -> Position | None:
        """The position of the run in the training data; None outside of training."""

    @property
    def plan(self) -> RunPlan | None:
        """The length of the run; None outside of training."""

    @property
    def grad_norm(self) -> Any:
        """The gradient norm of the last step; None if it is unknown."""

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the last step; None if it is unknown."""

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
        """This process and the other ranks."""

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
        """The sums of the training losses, for logs and the summary."""

    @property
    def sizes(self) -> Sizes:
        """The sizes of batches and steps."""

    @property
    def data_seed(self) -> int | None:
        """The seed of the data order; None outside of training."""

    @property
    def overridden(self) -> dict[str, Any]:
        """The arguments that have no effect: name -> the value in the checkpoint. The run uses this value."""

    def rng_states(self) -> dict[str, Any]:
        """Return the RNG states, including the states of generators in dataset, collator and sampler."""

    def restore_rng(self, states: Mapping[str, Any]) -> None:
        """Restore the RNG states that `rng_states` returned."""

    def seconds(self) -> float:
        """Return the training time of the run in seconds, including earlier sessions."""


class ResumableRun(SavableRun, Protocol):
    """The attributes of a run that a resume reads and sets. `engine.run.Run` implements this protocol."""

    run_id: str

    @property
    def services(self) -> RunServices:
        """The methods of the trainer."""

    @property
    def randomness(self) -> dict[str, Any]:
        """The RNG states of the checkpoint, for the feed to restore; an empty dict in a fresh run."""

    def continue_from(self, rng_states: dict[str, Any]) -> None:
        """Set the attribute `randomness` to `rng_states`. In a fresh run, `rng_states` is an empty dict."""

    def keep_overridden(self, values: dict[str, Any]) -> None:
        """Set the attribute `overridden` to `values`. In a fresh run, `values` is an empty dict."""

    def restore_step(self, last: Mapping[str, Any]) -> None:
        """Set gradient norm and learning rate of the last step. Keys: `grad_norm` and `learning_rate`."""

    def set_checkpoint(self, checkpoint: Any) -> None:
        """Set the attribute `checkpoint` to the `CheckpointRecord` of the checkpoint that the run resumes from."""

    @property
    def callback_states(self) -> RestorableCallbacks:
        """The states of the callbacks."""

    @property
    def train_batch_size(self) -> int:
        """The number of samples in a training batch of this rank."""

    def announce(self, event: str) -> None:
        """Call the handlers of an event."""


class ResumableFeed(Protocol):
    """The feed of batches, as a resume uses it. `engine.data.feed.Feed` implements this protocol."""

    def resume(self, place: dict[str, Any], restore_rng: Callable[[], None], restore_late: bool, /) -> None:
        """Make the next epoch of the feed start at a saved position of the data loader, with the saved RNG states.

        Args:
            place: the saved position; an empty dict if it is unknown.
            restore_rng: a function that restores the RNG states. The feed calls it once.
            restore_late: whether the feed calls `restore_rng` after it fetches the batches of the first step, as
                transformers does. If False, the feed calls `restore_rng` before it fetches these batches. If the run
                resumes at the start of an epoch, this argument has no effect.
        """
