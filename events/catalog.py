"""The catalogue of events: the single declaration that the base class, the checks and the documentation come from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What an event asks of its hearers."""

    WORK = "work"
    """Something is due now, and somebody must do it."""
    FACT = "fact"
    """Something begins, happened or was done; hearers may react."""


class Clock(str, Enum):
    """Which counter the filters `every=`, `once=`, `before=` and `after=` of a subscribed function read."""

    CALLS = "calls"
    """How often this event was announced since the function was subscribed, from 1."""
    STEP = "step"
    """The optimizer step being made: the first is 1."""
    STEPS_DONE = "steps done"
    """The optimizer steps that are complete."""
    EPOCH = "epoch"
    """The epoch being run, or just run: the first is 1."""


@dataclass(frozen=True)
class Event:
    """One moment of a run that can be subscribed to."""

    name: str
    """The handler's name, `on_<moment>`."""
    doc: str
    """What it means, in one line."""
    params: tuple[str, ...] = ()
    """What a handler may ask for by name here, beyond `COMMON`."""
    kind: Kind = Kind.FACT
    """Whether it asks for work or states a fact."""
    clock: Clock = Clock.CALLS
    """The counter that filters of subscribed functions read."""
    origin: str = "trainbus"
    """Where name and moment come from: `transformers` for the sixteen that are shared with it."""


COMMON = (
    "args",
    "state",
    "control",
    "model",
    "processing_class",
    "tokenizer",
    "optimizer",
    "lr_scheduler",
    "train_dataloader",
    "eval_dataloader",
    "run",
)
"""What every handler may ask for by name. `run` is the whole record; the others are fields of it."""

POSITIONAL = ("args", "state", "control")
"""What a handler written for transformers gets by position."""


def _shared(name: str, doc: str, params: tuple[str, ...] = (), clock: Clock = Clock.CALLS) -> Event:
    return Event(name, doc, params, Kind.FACT, clock, origin="transformers")


STEP = ("batch", "loss", "outputs", "grad_norm", "learning_rate")

EVENTS: tuple[Event, ...] = (
    _shared("on_init_end", "The trainer is constructed."),
    Event("on_setup", "Build now: wrap the model, fill the seams of the step, open what the run needs.", (), Kind.WORK),
    Event("on_load", "A checkpoint was restored into the run.", ("checkpoint",)),
    _shared("on_train_begin", "Training begins; everything is built."),
    _shared("on_epoch_begin", "An epoch begins.", clock=Clock.EPOCH),
    _shared("on_step_begin", "An optimizer step begins; its batches are fetched.", clock=Clock.STEP),
    Event(
        "on_batch", "A batch is about to enter the model; set `run.batch` to replace it.", ("batch",), clock=Clock.STEP
    ),
    Event(
        "on_loss", "The loss is computed and not yet backpropagated.", ("batch", "loss", "outputs"), clock=Clock.STEP
    ),
    _shared("on_substep_end", "A batch was backpropagated and more of this step follow.", STEP, Clock.STEP),
    Event("on_gradients", "All gradients of the step are there, unscaled and not yet clipped.", STEP, clock=Clock.STEP),
    _shared("on_pre_optimizer_step", "Gradients are clipped; the optimizer steps next.", STEP, Clock.STEP),
    _shared("on_optimizer_step", "The optimizer has stepped; gradients are still there.", STEP, Clock.STEP),
    _shared("on_step_end", "The step is complete and counted; gradients are gone.", STEP, Clock.STEPS_DONE),
    Event("on_log_due", "Logging is due: gather the values and log them.", ("requested_by",), Kind.WORK),
    _shared("on_log", "Values are logged; a handler before the reporters may add to them.", ("logs",)),
    Event("on_evaluate_due", "An evaluation is due: evaluate now.", ("requested_by",), Kind.WORK),
    Event("on_evaluate_begin", "An evaluation begins, over all its datasets."),
    _shared("on_prediction_step", "A batch of an evaluation or prediction is done."),
    Event(
        "on_evaluate_dataset",
        "One dataset is evaluated; its metrics may still be added to.",
        ("metrics", "dataset_name"),
    ),
    _shared("on_evaluate", "One dataset is evaluated and its metrics are logged.", ("metrics",)),
    Event("on_evaluate_end", "The evaluation is over; `metrics` holds those of all its datasets.", ("metrics",)),
    Event("on_save_due", "A checkpoint is due: save now.", ("requested_by",), Kind.WORK),
    Event("on_save_begin", "A checkpoint is about to be written; add to it, or veto it.", ("checkpoint",)),
    Event("on_snapshot", "The values of a checkpoint are copied; the weights may change again.", ("checkpoint",)),
    _shared("on_save", "A checkpoint is complete on disk.", ("checkpoint",)),
    _shared("on_push_begin", "A model is about to be pushed to a hub."),
    _shared("on_epoch_end", "An epoch ended, be it complete or cut short.", clock=Clock.EPOCH),
    _shared("on_train_end", "Training ended by itself; its summary is logged."),
    _shared("on_predict", "A prediction is done.", ("metrics",)),
    Event("on_exception", "The run failed; the error will be raised when all have heard of it.", ("exception",)),
    Event("on_close", "The run is over, however it ended: release what was opened. Last begun is first closed."),
    Event("on_end", "The trainer is done for good; trackers finish here. Last begun is first closed."),
)
"""All events, in the order in which a run announces them."""

CATALOG: dict[str, Event] = {event.name: event for event in EVENTS}
"""The same, by name."""

LAST_IN_FIRST_OUT = frozenset({"on_close", "on_end"})
"""Events that unwind: whoever came last is told first."""

MUST_ALL_HEAR = frozenset({"on_exception", "on_close", "on_end"})
"""Events at which one failing handler never keeps the others from hearing."""
