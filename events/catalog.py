"""The catalogue of events: the single declaration that generates the base class, the checks and the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from .errors import SubscriptionError
from .keywords import CheckedKeywords


class Kind(str, Enum):
    """Whether an event requests work or states a fact."""

    WORK = "work"
    """Some work is due now, and a handler must do it."""
    FACT = "fact"
    """Something begins or has happened. Handlers may react, but the run does not need a handler."""


class Clock(str, Enum):
    """What the filters `every=`, `once=`, `before=` and `after=` of `EventBus.on` count, such as steps or epochs."""

    CALLS = "calls"
    """The announcements of this event since the function was subscribed, from 1."""
    STEP = "step"
    """The current optimizer step. The first step is 1."""
    STEPS_DONE = "steps done"
    """The completed optimizer steps."""
    EPOCH = "epoch"
    """The current epoch, or the epoch that just ended. The first epoch is 1."""


@dataclass(frozen=True)
class Param:
    """One parameter that handlers of an event can name."""

    name: str
    """The name of the handler's parameter, and of the attribute of the run that holds the value."""
    type: str = "Any"
    """The annotation, as text with full module paths, such as `torch.nn.Module | None`."""
    doc: str = ""
    """A description of the value, in one line."""
    deprecated: str = ""
    """A sentence with the replacement, if the parameter is deprecated. Attaching a handler that names the parameter
    then emits a `FutureWarning`. Empty: not deprecated."""


@dataclass(frozen=True, init=False)
class Event(CheckedKeywords):
    """One named moment of a run."""

    name: str
    """The name of the handler, `on_<moment>`."""
    doc: str
    """The meaning, in one line."""
    params: tuple[Param, ...] = ()
    """The parameters that this event passes in addition to `COMMON`, the parameters that every event passes."""
    kind: Kind = Kind.FACT
    """Whether the event requests work or states a fact."""
    clock: Clock = Clock.CALLS
    """What `every=`, `once=`, `before=` and `after=` of `EventBus.on` count for this event, such as steps."""
    origin: str = "trainbus"
    """The library that defines the event: `transformers` for the 16 events that transformers has too."""
    deprecated: str = ""
    """A sentence with the replacement, if the event is deprecated. Subscribing to the event then emits a
    `FutureWarning`. Empty: not deprecated."""

    def __init__(
        self,
        name: str,
        doc: str,
        params: Iterable[Param | str] = (),
        kind: Kind = Kind.FACT,
        clock: Clock = Clock.CALLS,
        origin: str = "trainbus",
        deprecated: str = "",
    ) -> None:
        """Declare an event. The arguments are the fields of the class.

        `params` may contain names instead of `Param` objects. A name stands for a parameter of type `Any`.

        Raises:
            SubscriptionError: if `params` is a text, if an item is neither a name nor a `Param`, if a name is not an
                identifier, if two parameters have the same name, or if a name is in `COMMON_NAMES`, such as `model`.
                Every event already passes the parameters in `COMMON_NAMES`.
        """
        if isinstance(params, str):
            raise SubscriptionError(f"The parameters of the event {name!r} are a text. Write a tuple: ({params!r},).")
        values = {
            "name": name,
            "doc": doc,
            "params": tuple(Param(param) if isinstance(param, str) else param for param in params),
            "kind": kind,
            "clock": clock,
            "origin": origin,
            "deprecated": deprecated,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)
        self._check_params()

    def _check_params(self) -> None:
        taken: set[str] = set()
        for param in self.params:
            if not isinstance(param, Param) or not param.name.isidentifier():
                raise SubscriptionError(
                    f"The event {self.name!r} has the parameter {param!r}. Write a name, or Param(name, type, doc)."
                )
            if param.name in COMMON_NAMES:
                raise SubscriptionError(
                    f"The event {self.name!r} has the parameter {param.name!r}, which every handler may name already. "
                    "Rename or remove it."
                )
            if param.name in taken:
                raise SubscriptionError(f"The event {self.name!r} has the parameter {param.name!r} twice. Rename one.")
            taken.add(param.name)

    @property
    def param_names(self) -> tuple[str, ...]:
        """The names of the parameters in the field `params`."""
        return tuple(param.name for param in self.params)

    @property
    def all_params(self) -> dict[str, Param]:
        """All parameters that the event passes: name -> parameter. The parameters in `COMMON` come first."""
        return {param.name: param for param in (*COMMON, *self.params)}


COMMON: tuple[Param, ...] = (
    Param("args", "trainbus.engine.arguments.TrainingArguments", "The training arguments."),
    Param("state", "trainbus.events.state.TrainerState", "The progress of the run. Callbacks read this object."),
    Param(
        "control",
        "trainbus.events.control.TrainerControl",
        "The flags of the run. Callbacks raise and lower these flags.",
    ),
    Param("model", "torch.nn.Module", "The model as the user passed it, without any wrapper."),
    Param("processing_class", "Any", "The tokenizer or processor of the model. The value may be None."),
    Param("tokenizer", "Any", "The former name of `processing_class`."),
    Param("optimizer", "torch.optim.Optimizer", "The optimizer. The value is None before the first training."),
    Param(
        "lr_scheduler",
        "torch.optim.lr_scheduler.LRScheduler",
        "The learning-rate scheduler. The value is None before the first training.",
    ),
    Param(
        "train_dataloader",
        "Any",
        "The loader of the training batches. The value is None before the first training.",
    ),
    Param(
        "eval_dataloader",
        "Any",
        "The loader of the current or most recent evaluation. The value is None before the first evaluation.",
    ),
    Param(
        "run",
        "trainbus.engine.run.Run",
        "The object that holds all values of the run. Each other parameter is an attribute of this object.",
    ),
)
"""The parameters that every handler may name."""

COMMON_NAMES: tuple[str, ...] = tuple(param.name for param in COMMON)
"""The names of `COMMON`."""

POSITIONAL = ("args", "state", "control")
"""The parameters that a handler in the style of transformers receives by position."""

_BATCH = Param(
    "batch",
    "Any",
    "The most recent batch of this rank. A handler of `on_batch` may set `run.batch` to replace the batch.",
)
_EVAL_BATCH = Param("batch", "Any", "The batch of the evaluation or prediction, on the device.")
_PREDICTION = Param(
    "prediction",
    "trainbus.engine.evaluation.outputs.EvalPrediction | None",
    "Predictions and labels of this batch, gathered from all ranks. The value is None if no callback has the "
    "capability `READS_PREDICTIONS`.",
)
_LOSS = Param(
    "loss",
    "torch.Tensor",
    "The loss of the batch, as a scalar tensor. In `on_loss`, the tensor has its autograd graph. In later events, the "
    "tensor is detached.",
)
_OUTPUTS = Param(
    "outputs",
    "Any",
    "The outputs of the model for the batch. After `on_loss`, `run.outputs` is None, unless a handler names the "
    "parameter `outputs`.",
)
_LAST_NORM = Param(
    "grad_norm",
    "torch.Tensor | float | None",
    "The gradient norm of the previous step, measured before clipping. The value is None in the first step.",
)
_LAST_RATE = Param(
    "learning_rate", "float | None", "The learning rate of the previous step. The value is None in the first step."
)
_NORM = Param(
    "grad_norm",
    "torch.Tensor | float | None",
    "The gradient norm of this step, before clipping. With stages 1 to 3 of DeepSpeed, it is None until the update "
    "succeeds.",
)
_RATE = Param("learning_rate", "float", "The learning rate of this step.")
_BEFORE_CLIPPING = (_BATCH, _LOSS, _OUTPUTS, _LAST_NORM, _LAST_RATE)
_BEFORE_UPDATE = (_BATCH, _LOSS, _OUTPUTS, _NORM, _LAST_RATE)
_STEP_DONE = (_BATCH, _LOSS, _OUTPUTS, _NORM, _RATE)

_LOGS = Param(
    "logs", "dict[str, Any]", "The logged values: name -> value. A handler in a stage before REPORT may add values."
)
_METRICS = Param(
    "metrics", "dict[str, Any]", "The metrics: name -> value. A handler in a stage before REPORT may add metrics."
)
_DATASET_NAME = Param(
    "dataset_name", "str", "The name of the evaluated dataset. The text is empty if there is only one dataset."
)
_REQUESTED_BY = Param("requested_by", "frozenset[str]", "The ids of the callbacks that requested this work.")
_CHECKPOINT = Param(
    "checkpoint",
    "trainbus.engine.checkpoint.format.files.Checkpoint",
    "The path, the step and the metrics of the checkpoint.",
)
_SAVED_STEP = Param(
    "saved_step",
    "int",
    "The step of the save or evaluation that caused the deletion. The step of the checkpoint itself is "
    "`checkpoint.step`.",
)
_EXCEPTION = Param("exception", "BaseException", "The error that ends the session.")


def _shared(name: str, doc: str, params: tuple[Param, ...] = (), clock: Clock = Clock.CALLS) -> Event:
    return Event(name, doc, params, Kind.FACT, clock, origin="transformers")


EVENTS: tuple[Event, ...] = (
    _shared("on_init_end", "The construction of the trainer is complete."),
    Event(
        "on_setup",
        "A session begins. Handlers wrap the model, fill the seams of the step, and open files and connections.",
        kind=Kind.WORK,
    ),
    Event("on_load", "All states of the run were restored from a checkpoint.", (_CHECKPOINT,)),
    _shared("on_train_begin", "Training begins. Model, optimizer and loaders exist."),
    _shared("on_epoch_begin", "An epoch begins.", clock=Clock.EPOCH),
    _shared("on_step_begin", "An optimizer step begins. Its batches are already loaded.", clock=Clock.STEP),
    Event(
        "on_batch",
        "A batch is about to enter the model. Set `run.batch` to replace the batch.",
        (_BATCH,),
        clock=Clock.STEP,
    ),
    Event(
        "on_loss",
        "The loss of a batch is computed. The backward pass comes next. Set `run.loss` to replace the loss.",
        (_BATCH, _LOSS, _OUTPUTS),
        clock=Clock.STEP,
    ),
    _shared(
        "on_substep_end",
        "The backward pass of a batch is complete, and more batches of this step follow.",
        _BEFORE_CLIPPING,
        Clock.STEP,
    ),
    Event(
        "on_gradients",
        "All gradients of the step are computed, and loss scaling is undone. Clipping comes next.",
        _BEFORE_CLIPPING,
        clock=Clock.STEP,
    ),
    _shared(
        "on_pre_optimizer_step",
        "The clipping of the gradients is complete. The optimizer updates the weights next.",
        _BEFORE_UPDATE,
        Clock.STEP,
    ),
    _shared(
        "on_optimizer_step",
        "The weights are updated, and the gradients still exist. If the update is skipped, there is no event.",
        _BEFORE_UPDATE,
        Clock.STEP,
    ),
    _shared(
        "on_step_end",
        "The step is complete, and `state.global_step` includes this step. The gradients are cleared.",
        _STEP_DONE,
        Clock.STEPS_DONE,
    ),
    Event(
        "on_log_due",
        "A log is due. The callback `Log` collects the values and logs them.",
        (_REQUESTED_BY,),
        Kind.WORK,
    ),
    _shared("on_log", "The run logs values. A handler in a stage before REPORT may add values.", (_LOGS,)),
    Event(
        "on_evaluate_due",
        "An evaluation is due. The callback `Evaluate` runs the evaluation.",
        (_REQUESTED_BY,),
        Kind.WORK,
    ),
    Event("on_evaluate_begin", "An evaluation of one or more datasets begins."),
    _shared(
        "on_prediction_step",
        "The model has computed one batch of an evaluation or prediction.",
        (_EVAL_BATCH, _PREDICTION),
    ),
    Event(
        "on_evaluate_dataset",
        "The metrics of one dataset are computed, but not logged yet. A handler may add metrics.",
        (_METRICS, _DATASET_NAME),
    ),
    _shared("on_evaluate", "The metrics of one dataset are computed and logged.", (_METRICS,)),
    Event(
        "on_evaluate_end",
        "The evaluation of all datasets is complete. `metrics` holds the metrics of all datasets.",
        (_METRICS,),
    ),
    Event(
        "on_save_due",
        "A checkpoint is due. The callback `Checkpoint` saves the checkpoint.",
        (_REQUESTED_BY,),
        Kind.WORK,
    ),
    Event(
        "on_save_begin",
        "A checkpoint is about to be written. A handler may add values to `checkpoint.extra`, or veto the save.",
        (_CHECKPOINT,),
    ),
    Event(
        "on_snapshot",
        "All values of a checkpoint are copied or written. After this event, the weights may change.",
        (_CHECKPOINT,),
    ),
    Event(
        "on_commit",
        "A checkpoint is complete on disk. Training does not wait for this event, so `state` may be newer.",
        (_CHECKPOINT,),
    ),
    _shared(
        "on_save",
        "A checkpoint is complete on disk. If a callback handles this event, training waits for the write.",
        (_CHECKPOINT,),
    ),
    Event(
        "on_delete",
        "The retention policy deleted a checkpoint. Handlers run at the next save or at the end of training.",
        (_CHECKPOINT, _SAVED_STEP),
    ),
    _shared("on_push_begin", "A model is about to be pushed to a hub. At a save, only rank 0 announces this event."),
    _shared(
        "on_epoch_end",
        "An epoch ends, because it is complete or because a stop ended it early.",
        clock=Clock.EPOCH,
    ),
    Event("on_best_loaded", "Training ends, and the run has loaded the weights of the best model.", (_CHECKPOINT,)),
    _shared(
        "on_train_end",
        "Training ends: all steps are done, or the run stops. In the stage PREPARE, `Log` logs a summary.",
    ),
    _shared("on_predict", "A call of `trainer.predict` has computed the predictions of a dataset.", (_METRICS,)),
    Event(
        "on_exception",
        "An error or a signal ends the session. After `on_close`, the session raises the error.",
        (_EXCEPTION,),
    ),
    Event(
        "on_close", "The session ends, with or without an error. Handlers release resources, and run in reverse order."
    ),
    Event("on_end", "The program calls `trainer.end()`. Trackers close their runs. Handlers run in reverse order."),
)
"""All events, in the order in which a run announces them."""

CATALOG: dict[str, Event] = {event.name: event for event in EVENTS}
"""Name of an event -> the event."""

LAST_IN_FIRST_OUT = frozenset({"on_close", "on_end"})
"""Events whose handlers run in reverse order."""

ALL_HANDLERS_RUN = frozenset({"on_exception", "on_close", "on_end"})
"""Events with this rule: all handlers of the event run, even if a handler fails."""
