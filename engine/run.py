"""Run: the record of a run that handlers are given values from."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ..events.bus import EventBus
from ..events.capabilities import Capability
from ..events.catalog import Clock
from ..events.composition import provides
from ..events.control import TrainerControl
from ..events.state import TrainerState
from ..events.triggers import Moment, Place
from .arguments import TrainingArguments
from .checkpoint.callback_states import CallbackStates
from .checkpoint.read.contents import Contents
from .data.position import Position, Sizes
from .distributed.ranks import Ranks
from .loss.loss_window import Losses
from .loss.train_summary import train_summary
from .seams import Seams

if TYPE_CHECKING:
    from .data.plan import Plan


class Services(Protocol):
    """What a run does on request, through the trainer, so that a method overridden there is the one that is called."""

    def log(self, logs: dict[str, Any]) -> None:
        """Log values: to the history, and to all that hear `on_log`."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate and return the metrics."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return the operations that forward and backward of a batch take; 0 if that is not known."""

    def save_model(self, output_dir: str) -> None:
        """Write the model, with its config and tokenizer, so that it can be loaded without this library."""

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Return what writes the model as it is now, from copies, later and on any thread; None if nothing can."""

    def init_hf_repo(self) -> None:
        """Create the repository to push to, unless it is there."""

    def create_model_card(self) -> None:
        """Write the model card into the output folder."""

    def push_to_hub(self, commit_message: str = "End of training", blocking: bool = True) -> Any:
        """Save the model into the output folder, and push the folder."""


@dataclass
class Run:
    """Everything a handler may ask for by name. Callbacks read it; what they may change says so."""

    args: TrainingArguments
    """The training arguments."""
    state: TrainerState
    """How far the run is."""
    control: TrainerControl
    """What callbacks ask for. Callbacks write it."""
    model: nn.Module
    """The model as the user gave it."""
    ranks: Ranks
    """This process among those of the run."""
    services: Services
    """Logging, evaluating, saving and publishing on request."""
    bus: EventBus = field(init=False)
    """The event bus of the trainer."""
    callback_states: CallbackStates = field(init=False)
    """The states of the callbacks, for checkpoints."""
    contents: Contents = field(default_factory=Contents)
    """What was read of the checkpoint to go on from when it was checked, until it is loaded."""
    processing_class: Any = None
    """The tokenizer or processor that belongs to the model."""
    model_wrapped: nn.Module = field(default_factory=nn.Module)
    """The model as it is called: inside DDP and the like, where one is used."""
    optimizer: Any = None
    """The optimizer; None before training."""
    lr_scheduler: Any = None
    """The learning-rate schedule; None before training."""
    train_dataloader: Any = None
    """The loader of the training batches."""
    eval_dataloader: Any = None
    """The loader of the evaluation in progress, or of the last one."""
    seams: Seams = field(default_factory=Seams)
    """How steps are made. Callbacks fill it during `on_setup`."""
    losses: Losses = field(init=False)
    """The training losses that wait to be logged."""
    plan: Plan | None = None
    """How long the run is; None outside of training."""
    position: Position | None = None
    """Where in the data the run is; None outside of training."""
    mode: str = ""
    """What the session is for: `train`, `evaluate` or `predict`."""
    run_id: str = ""
    """What tells this run from others that write into the same folder; a resumed run keeps it."""
    train_batch_size: int = 0
    """Rows in a training batch of this process."""
    data_seed: int | None = None
    """The seed of the training data's order."""

    batch: Any = None
    """The batch in work, or the last one of the step just made. A handler of `on_batch` may replace it."""
    randomness: dict[str, Any] = field(default_factory=dict)
    """The random states that a resumed run goes on with when it takes its first batch; empty where it begins anew."""
    loss: Any = None
    """The loss of the batch: live in `on_loss`, where a handler may replace it, and detached after."""
    outputs: Any = None
    """What the model returned for the batch; kept after `on_loss` only if a handler names it."""
    grad_norm: Any = None
    """The norm of the gradients before clipping, as a tensor."""
    learning_rate: float | None = None
    """The learning rate with which the step was made."""
    logs: dict[str, Any] = field(default_factory=dict)
    """The values being logged. Handlers before REPORT may add to them."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics of the evaluation in work, or of the last one. Handlers before REPORT may add to them."""
    metrics_step: int = -1
    """The step after which they were measured."""
    metric_prefix: str = "eval"
    """What the names of the evaluation's metrics begin with."""
    evaluates_all: bool = True
    """Whether it is the evaluation of the run itself, on all of the trainer's eval datasets."""
    dataset_name: str = ""
    """The name of the evaluated dataset; empty when there is but one."""
    requested_by: frozenset[str] = frozenset()
    """Who asked for the work that is due."""
    checkpoint: Any = None
    """The checkpoint being written, or restored."""
    exception: BaseException | None = None
    """The error that ends the run."""
    _summary: dict[str, Any] = field(default_factory=dict)
    _first_step: int = 0
    _began: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()))

    def __post_init__(self) -> None:
        self.bus = EventBus(self, self.control)
        self.callback_states = CallbackStates(self.bus)
        self.model_wrapped = self.model
        self.losses = Losses(0, self.args.device, self.ranks.gather)
        if not self.ranks.single_process:
            atexit.register(_let_go_at_exit, weakref.ref(self))

    def leave(self) -> None:
        """Leave the process group."""
        self.let_go()
        self.ranks.leave()

    def let_go(self) -> None:
        """Let go of all that holds the process group: the wrapped model, the optimizer, the seams."""
        if not self.ranks.single_process:
            self.model_wrapped, self.seams = self.model, Seams()
            self.optimizer = self.lr_scheduler = self.loss = self.outputs = None

    @property
    def run(self) -> Run:
        """The record itself, for handlers that name `run`."""
        return self

    @property
    def tokenizer(self) -> Any:
        """The older name of `processing_class`."""
        return self.processing_class

    @property
    def unwrapped_model(self) -> nn.Module:
        """The model without any wrapper."""
        return self.model

    @property
    def sizes(self) -> Sizes:
        """The sizes of batches and steps."""
        return Sizes(self.train_batch_size * self.ranks.world_size, self.args.gradient_accumulation_steps)

    @property
    def device(self) -> torch.device:
        """Where the batches go."""
        return self.args.device

    def announce(self, event: str, **values: Any) -> None:
        """Announce an event, one's own or another, with values that only this announcement carries."""
        self.bus.announce(event, **values)

    def log(self, logs: Mapping[str, Any]) -> None:
        """Log values now, beside what the run logs itself."""
        self.services.log(dict(logs))

    def evaluate(self, **options: Any) -> dict[str, float]:
        """Evaluate now and return the metrics; see `Trainer.evaluate` for the options."""
        return self.services.evaluate(**options)

    @property
    def saves(self) -> bool:
        """Whether the run writes checkpoints at all."""
        return provides(self.bus.subscribers.values(), Capability.WRITES_CHECKPOINTS)

    def begin(self) -> None:
        """Start the clock and the sums of a training session."""
        self._summary = {}
        self._first_step = self.state.global_step
        self._began = (time.time(), time.monotonic())
        self.losses = Losses(self.state.global_step, self.args.device, self.ranks.gather)

    def summary(self) -> dict[str, Any]:
        """Return the summary of this training session, made once, when it is first asked for."""
        if not self._summary:
            self._summary = train_summary(self, self._first_step, self._began[0])
        return self._summary

    def count(self, clock: Clock, calls: int) -> int:
        """Return the count that filters of subscribed functions compare with, from 1."""
        if clock is Clock.STEP:
            return self.state.global_step + 1
        if clock is Clock.STEPS_DONE:
            return self.state.global_step
        if clock is Clock.EPOCH:
            return (self.position.epoch if self.position is not None else 0) + 1
        return calls

    def moment(self, place: Place) -> Moment:
        """Return where the run is, for triggers, at the end of a step or of an epoch."""
        state = self.state
        step, max_steps = state.global_step, state.max_steps
        last = step >= max_steps or self.control.should_training_stop
        return Moment(place, step, state.epoch, max_steps, self.seconds(), last)

    def seconds(self) -> float:
        """Return the seconds spent training, earlier sessions of a resumed run included."""
        return self.state.seconds + time.monotonic() - self._began[1]

    def current_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group."""
        rate = self.optimizer.param_groups[0]["lr"]
        return float(rate.item()) if isinstance(rate, torch.Tensor) else rate


def _let_go_at_exit(reference: weakref.ref[Run]) -> None:
    run = reference()
    if run is not None:
        run.let_go()
