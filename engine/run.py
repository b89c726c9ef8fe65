"""Run: the record of a run. Handlers read their parameters from it.

The fields live in four records, by how long their values are valid: `Run` itself (the lifetime of the trainer),
`SessionRecord` (one call of `train`, `evaluate` or `predict`), `StepRecord` (one optimizer step) and
`EvaluationRecord` (one evaluation). Handlers and plugins read every field from the run, as `run.batch` or `run.plan`.
`tests/engine/test_run_owners.py` says which module writes each field.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from ..events.activity import Activity
from ..events.bus import EventBus
from ..events.capabilities import Capability
from ..events.catalog import Clock
from ..events.composition import provides
from ..events.control import TrainerControl
from ..events.state import TrainerState
from ..events.triggers import Moment, Place
from .api.services import Services
from .arguments import TrainingArguments
from .checkpoint.callback_states import CallbackStates
from .data.plan import RunPlan
from .data.position import Position, Sizes
from .distributed.ranks import Ranks
from .evaluation.outputs import train_summary
from .loss.loss_window import Losses
from .seams import Seams


@dataclass
class StepRecord:
    """One optimizer step. The stepper writes it."""

    batch: Any = None
    """The current batch, or the last one of the finished step. A handler of `on_batch` may replace it."""
    loss: Any = None
    """The loss of the batch, a scalar tensor. Live in `on_loss`, where a handler may replace it; detached after."""
    outputs: Any = None
    """The outputs of the model for the batch. Kept after `on_loss` only if a handler names them."""
    grad_norm: Any = None
    """The norm of the gradients before clipping, a scalar tensor."""
    learning_rate: float | None = None
    """The learning rate of the step's update."""


@dataclass
class EvaluationRecord:
    """One evaluation or prediction. The Trainer's evaluation methods write it."""

    prefix: str = "eval"
    """The prefix of the metric names."""
    complete: bool = True
    """Whether the evaluation covers all of the trainer's own eval datasets."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics. Handlers that run before REPORT may add to them."""
    step: int = -1
    """The global step of the metrics; -1 before there are any."""
    dataset_name: str = ""
    """The name of the current dataset; empty for a single, unnamed one."""
    dataloader: Any = None
    """The loader of the evaluation batches."""


@dataclass
class SessionRecord:
    """One call of `train()`, `evaluate()` or `predict()`. The session and the Trainer's training methods write it."""

    mode: str = ""
    """`train`, `evaluate` or `predict`; empty outside of a session."""
    seams: Seams = field(default_factory=Seams)
    """The replaceable parts of a step. Callbacks fill them during `on_setup`."""
    exception: BaseException | None = None
    """The error that ends the session."""
    train_batch_size: int = 0
    """Samples per training batch of this rank."""
    data_seed: int | None = None
    """The seed of the training data's order."""
    train_dataloader: Any = None
    """The loader of the training batches."""
    plan: RunPlan | None = None
    """The length of the run; None outside of training."""
    position: Position | None = None
    """The position in the training data; None outside of training."""
    randomness: dict[str, Any] = field(default_factory=dict)
    """The RNG states that a resumed run restores before its first batch; empty in a run from the start."""
    first_step: int = 0
    """The global step at which the training session began."""
    began: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()))
    """When the training session began, on the wall clock and on the monotonic clock, in seconds."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The summary of the training session, once it was made."""


def _of(path: str) -> Any:
    """Return a property that reads and writes a field of a record, such as `step.batch`."""
    record, _, name = path.partition(".")

    def write(run: Run, value: Any) -> None:
        setattr(getattr(run, record), name, value)

    # attrgetter is C code: a handler's parameter costs no Python call.
    return property(attrgetter(path), write)


class Run:
    """Everything a handler may name as a parameter. Callbacks read it; a field that they may write says so."""

    args: TrainingArguments
    """The training arguments."""
    state: TrainerState
    """The progress of the run."""
    control: TrainerControl
    """The flags. Callbacks write it."""
    model: nn.Module
    """The user's model, unwrapped."""
    model_wrapped: nn.Module
    """The model that is called: wrapped by DDP, FSDP or another wrapper if one is used."""
    processing_class: Any
    """The tokenizer or processor of the model."""
    optimizer: Any
    """The optimizer; None before training."""
    lr_scheduler: Any
    """The learning-rate schedule; None before training."""
    ranks: Ranks
    """This process and its process group."""
    services: Services
    """Logging, evaluating, saving and publishing on request."""
    bus: EventBus
    """The event bus of the trainer."""
    activity: Activity
    """What this process is doing, for error reports."""
    callback_states: CallbackStates
    """The callback states for checkpoints."""
    losses: Losses
    """The training losses since the last log."""
    run_id: str
    """The identity of the run. A resumed run keeps it."""
    logs: dict[str, Any]
    """The values of the current log. Handlers that run before REPORT may add to them."""
    requested_by: frozenset[str]
    """The authors of the request that is being served."""
    checkpoint: Any
    """The checkpoint that is being written or was restored."""
    run: Run
    """The record itself, for handlers that name `run`."""
    step: StepRecord
    evaluation: EvaluationRecord
    session: SessionRecord

    batch: Any = _of("step.batch")
    loss: Any = _of("step.loss")
    outputs: Any = _of("step.outputs")
    grad_norm: Any = _of("step.grad_norm")
    learning_rate: float | None = _of("step.learning_rate")
    metrics: dict[str, Any] = _of("evaluation.metrics")
    metrics_step: int = _of("evaluation.step")
    metric_prefix: str = _of("evaluation.prefix")
    evaluates_all: bool = _of("evaluation.complete")
    dataset_name: str = _of("evaluation.dataset_name")
    eval_dataloader: Any = _of("evaluation.dataloader")
    mode: str = _of("session.mode")
    seams: Seams = _of("session.seams")
    exception: BaseException | None = _of("session.exception")
    train_batch_size: int = _of("session.train_batch_size")
    data_seed: int | None = _of("session.data_seed")
    train_dataloader: Any = _of("session.train_dataloader")
    plan: RunPlan | None = _of("session.plan")
    position: Position | None = _of("session.position")
    randomness: dict[str, Any] = _of("session.randomness")

    def __init__(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        ranks: Ranks,
        services: Services,
        processing_class: Any = None,
    ) -> None:
        """Create the record of a trainer.

        Args:
            args: the training arguments.
            state: the progress of the run.
            control: the flags that callbacks raise.
            model: the user's model, unwrapped.
            ranks: this process and its process group.
            services: logging, evaluating, saving and publishing on request.
            processing_class: the tokenizer or processor of the model.
        """
        self.args = args
        self.state = state
        self.control = control
        self.model = model
        self.ranks = ranks
        self.services = services
        self.processing_class = processing_class
        self.bus = EventBus(self, control)
        self.activity = Activity()
        self.callback_states = CallbackStates(self.bus)
        self.model_wrapped = model
        self.optimizer = self.lr_scheduler = self.checkpoint = None
        self.run_id, self.logs, self.requested_by = "", {}, frozenset()
        self.step, self.evaluation, self.session = StepRecord(), EvaluationRecord(), SessionRecord()
        self.losses = Losses(0, args.device, ranks.gather)
        self.run = self
        if not ranks.single_process:
            atexit.register(_release_at_exit, weakref.ref(self))

    # Wrapping and releasing the model.

    def wrap(self, model: nn.Module) -> None:
        """Call this wrapped model from now on; `run.model` stays the user's model."""
        self.model_wrapped = model

    def unwrap(self) -> None:
        """Call the user's model from now on."""
        self.model_wrapped = self.model

    def replace_model(self, model: nn.Module) -> None:
        """Use another model, unwrapped."""
        self.model = self.model_wrapped = model

    def use_batch_size(self, samples: int) -> None:
        """Train with this number of samples per batch of this rank."""
        self.session.train_batch_size = samples

    def restore_step(self, last: Mapping[str, Any]) -> None:
        """Restore the values of the last step before a checkpoint."""
        self.step.grad_norm, self.step.learning_rate = last.get("grad_norm"), last.get("learning_rate")

    def set_checkpoint(self, checkpoint: Any) -> None:
        """Set `run.checkpoint` to the checkpoint that the run writes or was restored from."""
        self.checkpoint = checkpoint

    def report_grad_norm(self, norm: Any) -> None:
        """Set the gradient norm of the step, where the wrapped model clips the gradients itself."""
        self.step.grad_norm = norm

    def continue_from(self, rng_states: dict[str, Any]) -> None:
        """Restore these RNG states before the next batch is taken."""
        self.session.randomness = rng_states

    def drop_batch(self) -> None:
        """Free the batch and the outputs of the last step."""
        self.step.batch = self.step.outputs = None

    def release(self) -> None:
        """Drop every reference to the process group: wrapped model, optimizer, schedule and seams."""
        if not self.ranks.single_process:
            self.unwrap()
            self.session.seams = Seams()
            self.optimizer = self.lr_scheduler = self.step.loss = self.step.outputs = None

    def leave(self) -> None:
        """Leave the process group."""
        self.release()
        self.ranks.leave()

    @contextmanager
    def evaluating(self, prefix: str, *, complete: bool) -> Iterator[EvaluationRecord]:
        """Give an evaluation its own record. An evaluation that runs inside another one restores the outer record.

        Args:
            prefix: the prefix of the metric names.
            complete: whether it covers all of the trainer's own eval datasets.
        """
        outer, self.evaluation = self.evaluation, EvaluationRecord(prefix, complete)
        nested, self._evaluating = self._evaluating, True
        try:
            yield self.evaluation
        finally:
            self._evaluating = nested
            if nested:
                self.evaluation = outer

    _evaluating = False

    # Methods for handlers.

    @property
    def tokenizer(self) -> Any:
        """The older name of `processing_class`."""
        return self.processing_class

    @property
    def unwrapped_model(self) -> nn.Module:
        """The user's model, without any wrapper."""
        return self.model

    @property
    def sizes(self) -> Sizes:
        """The sizes of batches and steps over all ranks."""
        return Sizes(self.train_batch_size * self.ranks.world_size, self.args.gradient_accumulation_steps)

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self.args.device

    @property
    def saves(self) -> bool:
        """Whether an attached callback writes checkpoints."""
        return provides(self.bus.subscribers.values(), Capability.WRITES_CHECKPOINTS)

    def announce(self, event: str, **values: Any) -> None:
        """Announce an event. `values` are parameters that only this announcement carries."""
        self.bus.announce(event, **values)

    def log(self, logs: Mapping[str, Any]) -> None:
        """Log values now, in addition to the values that the run logs."""
        self.services.log(dict(logs))

    def evaluate(self, **options: Any) -> dict[str, float]:
        """Evaluate now and return the metrics. `Trainer.evaluate` lists the options."""
        return self.services.evaluate(**options)

    # Time and progress.

    def begin(self) -> None:
        """Start the clock and the loss sums of a training session."""
        session = self.session
        session.summary = {}
        session.first_step = self.state.global_step
        session.began = (time.time(), time.monotonic())
        self.losses = Losses(self.state.global_step, self.args.device, self.ranks.gather)

    def summary(self) -> dict[str, Any]:
        """Return the summary of this training session. The first call makes it."""
        session = self.session
        if not session.summary:
            session.summary = train_summary(self, session.first_step, session.began[0])
        return session.summary

    def count(self, clock: Clock, calls: int) -> int:
        """Return the count, from 1, that filters of subscribed functions compare with."""
        if clock is Clock.STEP:
            return self.state.global_step + 1
        if clock is Clock.STEPS_DONE:
            return self.state.global_step
        if clock is Clock.EPOCH:
            return (self.position.epoch if self.position is not None else 0) + 1
        return calls

    def moment(self, place: Place) -> Moment:
        """Return the progress that triggers compare with, at the end of a step or of an epoch."""
        state = self.state
        step, max_steps = state.global_step, state.max_steps
        last = step >= max_steps or self.control.should_training_stop
        return Moment(place, step, state.epoch, max_steps, self.seconds(), last)

    def seconds(self) -> float:
        """Return the training time in seconds, including earlier sessions of a resumed run."""
        return self.state.seconds + time.monotonic() - self.session.began[1]

    def current_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group."""
        rate = self.optimizer.param_groups[0]["lr"]
        return float(rate.item()) if isinstance(rate, torch.Tensor) else rate


def _release_at_exit(reference: weakref.ref[Run]) -> None:
    run = reference()
    if run is not None:
        run.release()
