"""Run: the values that handlers receive. A handler with a parameter such as `batch` receives the field `run.batch`.

Four records store these values. `Run` itself stores the values of the trainer, such as the model. `StepRecord` stores
the values of an optimizer step. `EvaluationRecord` stores the values of an evaluation. `SessionRecord` stores the
values of a session: one call of `train`, `evaluate` or `predict`. Handlers and plugins read the fields of all four
records from the run, such as `run.batch` or `run.plan`. `tests/engine/test_run_owners.py` says which module writes each
field.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from ..events.activity import Activity
from ..events.bus import EventBus
from ..events.capabilities import Capability
from ..events.composition import provides
from ..events.control import TrainerControl
from ..events.state import TrainerState
from .api.clocks import RunClocks
from .api.records import SessionRecord, StepRecord
from .api.services import Services
from .arguments import TrainingArguments
from .checkpoint.callback_states import CallbackStates
from .checkpoint.rng_state import moved_to_device, random_states, restore_random_states
from .checkpoint.storage import Disk, Storage
from .data.plan import RunPlan
from .data.position import Position, Sizes, batch_size_of
from .data.workers.persistent import PersistentLoaders
from .distributed.ranks import Ranks
from .evaluation.evaluation_record import EvaluationPlan, EvaluationRecord, new_record
from .evaluation.outputs import recordable, train_summary
from .loss.loss_window import Losses
from .seams import Seams

logger = logging.getLogger(__name__)


def _of(path: str) -> Any:
    """Return a property that reads and writes a nested attribute: `run.step.batch` for the path `step.batch`."""
    record, _, name = path.partition(".")

    def write(run: Run, value: Any) -> None:
        setattr(getattr(run, record), name, value)

    # attrgetter is C code, so reading a parameter for a handler calls no Python function.
    return property(attrgetter(path), write)


class Run(RunClocks):
    """The values that handlers can name as parameters. Callbacks may write a field only if its description says so."""

    args: TrainingArguments
    """The training arguments."""
    state: TrainerState
    """The progress of the run."""
    control: TrainerControl
    """The control with the flags. Callbacks write to it."""
    model: nn.Module
    """The user's model, unwrapped."""
    model_wrapped: nn.Module
    """The model that a step calls: the user's model, wrapped by DDP, FSDP or another wrapper if one is used."""
    processing_class: Any
    """The tokenizer or processor of the model."""
    optimizer: Any
    """The optimizer; None before the first training. On several ranks, also None after `release()`."""
    lr_scheduler: Any
    """The learning-rate schedule; None before the first training. On several ranks, also None after `release()`."""
    ranks: Ranks
    """This process and its process group."""
    services: Services
    """The methods with which callbacks log, evaluate, save and publish."""
    bus: EventBus
    """The event bus of the trainer."""
    activity: Activity
    """The activity of this process, for error reports."""
    plugins: Sequence[str]
    """One line for each plugin that is attached or that a setting leaves out. The lines must be equal on all ranks."""
    storage: Storage
    """Writes, lists and deletes checkpoints: a `Disk`, which uses the output folder. A preview uses another storage."""
    callback_states: CallbackStates
    """The callback states for checkpoints."""
    eval_loaders: PersistentLoaders
    """The evaluation loaders with persistent workers."""
    losses: Losses
    """The training losses since the last log."""
    run_id: str
    """The identity of the run. A resumed run keeps it."""
    logs: dict[str, Any]
    """The values of the current log. Handlers that run before REPORT may add values."""
    requested_by: frozenset[str]
    """The ids of the callbacks whose request the run serves now."""
    prediction: Any = None
    """Predictions and labels of an evaluation batch. Handlers of `on_prediction_step` receive them; None elsewhere."""
    saved_step: int = 0
    """In `on_delete`: the step of the save or evaluation after which the run deleted the checkpoint. Else 0."""
    checkpoint: Any
    """The last checkpoint that the run wrote, is writing or resumed from; None if there is none."""
    run: Run
    """This `Run` itself, for handlers with a parameter `run`."""
    step: StepRecord
    """The record of the current step. Between two steps: the record of the finished step."""
    evaluation: EvaluationRecord
    """The record of the current evaluation; if evaluations are nested, of the inner evaluation. Between evaluations:
    the record of the last evaluation."""
    session: SessionRecord
    """The record of the current session. Outside of a session: the record of the last session."""

    batch: Any = _of("step.batch")
    loss: Any = _of("step.loss")
    outputs: Any = _of("step.outputs")
    grad_norm: Any = _of("step.grad_norm")
    learning_rate: float | None = _of("step.learning_rate")
    metrics: dict[str, Any] = _of("evaluation.metrics")
    metrics_step: int = _of("evaluation.step")
    metric_prefix: str = _of("evaluation.prefix")
    evaluates_all: bool = _of("evaluation.complete")
    evaluation_decides: bool = _of("evaluation.decides")
    dataset_name: str = _of("evaluation.dataset_name")
    eval_dataloader: Any = _of("evaluation.dataloader")
    mode: str = _of("session.mode")
    seams: Seams = _of("session.seams")
    exception: BaseException | None = _of("session.exception")
    train_batch_size: int = _of("session.train_batch_size")
    data_seed: int | None = _of("session.data_seed")
    overridden: dict[str, Any] = _of("session.overridden")
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
        plugins: Sequence[str] = (),
    ) -> None:
        """Store the objects of a trainer. Create the event bus and the records of the run.

        Args:
            args: the training arguments.
            state: the progress of the run.
            control: the flags that callbacks raise.
            model: the user's model, unwrapped.
            ranks: this process and its process group.
            services: the methods with which callbacks log, evaluate, save and publish.
            processing_class: the tokenizer or processor of the model.
            plugins: one line of text for each plugin that is attached or excluded by a setting.
        """
        self.args, self.state, self.control = args, state, control
        self.model, self.processing_class = model, processing_class
        self.ranks, self.services, self.plugins = ranks, services, tuple(plugins)
        self.bus = EventBus(self, control)
        self.activity = Activity()
        self.storage = Disk()
        self.callback_states = CallbackStates(self.bus)
        self.model_wrapped = model
        self.optimizer = self.lr_scheduler = self.checkpoint = None
        self.run_id, self.logs, self.requested_by = "", {}, frozenset()
        self.step, self.evaluation, self.session = StepRecord(), EvaluationRecord(), SessionRecord()
        self.eval_loaders = PersistentLoaders()
        self.losses = Losses(0, args.device, ranks.gather)
        self.evaluation_plan = EvaluationPlan()
        self._open_evaluations: list[EvaluationRecord] = []  # from the outermost to the innermost
        self._measured: tuple[int, dict[str, Any]] = (-1, {})
        self.run = self
        if not ranks.single_process:
            atexit.register(_release_at_exit, weakref.ref(self))

    # Wrapping and releasing the model.

    def wrap(self, model: nn.Module) -> None:
        """Make steps call a wrapped model: set `run.model_wrapped`. `run.model` stays the user's model."""
        self.model_wrapped = model

    def unwrap(self) -> None:
        """Make steps call the user's model without a wrapper: set `run.model_wrapped` to `run.model`."""
        self.model_wrapped = self.model

    def replace_model(self, model: nn.Module) -> None:
        """Set both `run.model` and `run.model_wrapped` to `model`, which has no wrapper."""
        self.model = self.model_wrapped = model

    def replace_state(self, state: TrainerState) -> None:
        """Set `run.state` to another trainer state. A program may assign `trainer.state` between two trainings."""
        self.state = state

    def use_arguments(self, args: TrainingArguments) -> None:
        """Set `run.args` to other arguments. A program may replace them at any time."""
        self.args = args

    def use_processor(self, processing_class: Any) -> None:
        """Set `run.processing_class`, the tokenizer or processor. Checkpoints save it with the model."""
        self.processing_class = processing_class

    def use_batch_size(self, samples: int) -> None:
        """Set the number of samples per training batch of this rank."""
        self.session.train_batch_size = samples

    def restore_step(self, last: Mapping[str, Any]) -> None:
        """Set `run.grad_norm` and `run.learning_rate` to the values in `last`; None for a missing value."""
        self.step.grad_norm, self.step.learning_rate = last.get("grad_norm"), last.get("learning_rate")

    def set_checkpoint(self, checkpoint: Any) -> None:
        """Set `run.checkpoint` to the checkpoint that the run writes or was restored from."""
        self.checkpoint = checkpoint

    def report_grad_norm(self, norm: Any) -> None:
        """Set the gradient norm of the step. Wrappers that clip the gradients themselves report their norm here."""
        self.step.grad_norm = norm

    def continue_from(self, rng_states: dict[str, Any]) -> None:
        """Store the RNG states that a resumed run restores before its first batch."""
        self.session.randomness = rng_states

    def keep_overridden(self, values: dict[str, Any]) -> None:
        """Store values that a resumed run takes from its checkpoint, instead of from its arguments."""
        self.session.overridden = values

    def rng_states(self) -> dict[str, Any]:
        """Return the RNG states of Python, numpy and torch.

        The key `own` has the states of the generators of dataset, collator and sampler. On a GPU, the key `cuda_device`
        has the index of the device.
        """
        states = {**random_states(), "own": self.services.data_generators().read()}
        return states if self.device.index is None else {**states, "cuda_device": self.device.index}

    def restore_rng(self, states: Mapping[str, Any]) -> None:
        """Restore the RNG states that `rng_states` returned.

        If a generator in `states` is not found in the dataset, the collator and the sampler, log a warning. If the run
        was on another GPU before, this GPU gets the state of that GPU.
        """
        now = self.device.index or 0
        restore_random_states(moved_to_device(dict(states), states.get("cuda_device", now), now))
        if missing := self.services.data_generators().restore(states.get("own", {})):
            logger.warning(
                "The checkpoint has the states of random generators that dataset, collator and sampler do not have "
                "now: %s. Draws of other generators start fresh.",
                ", ".join(missing),
            )

    def drop_batch(self) -> None:
        """At the end of a session, free the batch and the outputs of the last step."""
        self.step.batch = self.step.outputs = None

    def release(self) -> None:
        """With several processes, drop all objects that refer to the process group, at the end of the program.

        These objects are the wrapped model, the seams, the optimizer and the schedule. In a single process, do nothing.
        """
        if not self.ranks.single_process:
            self.unwrap()
            self.session.seams = Seams()
            self.optimizer = self.lr_scheduler = self.step.loss = self.step.outputs = None

    def leave(self) -> None:
        """Call the method `release`, and then leave the process group. `trainer.end()` calls this method."""
        self.release()
        self.ranks.leave()

    @contextmanager
    def evaluating(
        self, prefix: str, *, complete: bool, prefixes: Iterable[str] = (), foreign: bool = False
    ) -> Iterator[EvaluationRecord]:
        """Set `run.evaluation` to a new record, and yield the record.

        After the `with` block of a nested evaluation, `run.evaluation` is the record of the outer evaluation again.
        After any other `with` block, `run.evaluation` stays the new record.

        Args:
            prefix: the prefix of the metric names.
            complete: whether the evaluation covers all of the trainer's own eval datasets.
            prefixes: the prefix of each dataset, such as `eval_math`.
            foreign: True if the evaluation uses other data, but has the metric names of the trainer's eval datasets.
                The field `decides` of the record is then False.
        """
        outer = self._open_evaluations[-1] if self._open_evaluations else None
        record = self.evaluation = new_record(
            prefix, complete, foreign, frozenset(prefixes), self.evaluation_plan, outer
        )
        self._open_evaluations.append(record)
        try:
            yield record
            self._note_metrics(record)
        finally:
            self._open_evaluations.pop()
            if self._open_evaluations:
                self.evaluation = self._open_evaluations[-1]

    def _note_metrics(self, record: EvaluationRecord) -> None:
        if record.decides and record.step >= 0:
            step, before = self._measured
            self._measured = record.step, {**(before if step == record.step else {}), **record.metrics}

    def metrics_at(self, step: int) -> dict[str, Any]:
        """Return the metrics of the evaluations at a step, such as `eval_loss`.

        If `step` is not the last evaluated step, return {}. Values that a checkpoint cannot store are left out. Metrics
        from which no callback may decide are left out too (`decides` is False in the `EvaluationRecord`).
        """
        measured, metrics = self._measured
        return recordable(metrics)[0] if measured == step else {}

    # Methods for handlers.

    @property
    def tokenizer(self) -> Any:
        """The former name of `processing_class`."""
        return self.processing_class

    @property
    def unwrapped_model(self) -> nn.Module:
        """The user's model, without any wrapper."""
        return self.model

    @property
    def sizes(self) -> Sizes:
        """The sizes of batches and steps over all ranks."""
        of_rank = batch_size_of(self.train_dataloader, self.train_batch_size)
        return Sizes(of_rank * self.ranks.world_size, self.args.gradient_accumulation_steps)

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self.args.device

    @property
    def saves(self) -> bool:
        """Whether an attached callback can write checkpoints."""
        return provides(self.bus.subscribers.values(), Capability.WRITES_CHECKPOINTS)

    def announce(self, event: str, **values: Any) -> None:
        """Call the handlers of an event. `values` are additional parameters that handlers can name."""
        self.bus.announce_checked(event, values)

    def log(self, logs: Mapping[str, Any]) -> None:
        """Log values now, in addition to the values that the run logs."""
        self.services.log(dict(logs))

    def evaluate(self, **options: Any) -> dict[str, float]:
        """Evaluate now and return the metrics. `Trainer.evaluate` lists the options."""
        return self.services.evaluate(**options)

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return the full gradients of the step: parameter name -> gradient. Shards are gathered.

        Call this method on every rank, in a handler of an event from `on_gradients` to `on_optimizer_step`. The dict
        lacks parameters without a gradient.
        """
        return self.seams.full_gradients(self.model)

    # Time and progress.

    def begin(self) -> None:
        """Start the clock and the loss sums of a training session."""
        session = self.session
        session.summary = {}
        session.first_step = self.state.global_step
        session.began = (time.time(), time.monotonic())
        self._measured = (-1, {})
        self.losses = Losses(self.state.global_step, self.args.device, self.ranks.gather)

    def summary(self) -> dict[str, Any]:
        """Compute runtime, throughput, FLOPs and mean loss of the training. Later calls return the same dict."""
        session = self.session
        if not session.summary:
            session.summary = train_summary(self, session.first_step, session.began[0])
        return session.summary

    def current_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group."""
        rate = self.optimizer.param_groups[0]["lr"]
        return float(rate.item()) if isinstance(rate, torch.Tensor) else rate


def _release_at_exit(reference: weakref.ref[Run]) -> None:
    run = reference()
    if run is not None:
        run.release()
