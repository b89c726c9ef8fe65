"""Run callbacks that were written for Lightning, at the events that correspond to their hooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import callbacks as known

from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from .view import HeldSchedule, ModuleView, TrainerView

HOOKS: dict[str, str] = {
    **{"setup": "on_setup", "teardown": "on_close", "on_exception": "on_exception"},
    **{"on_fit_start": "on_train_begin", "on_train_start": "on_train_begin", "on_train_end": "on_train_end"},
    **{"on_fit_end": "on_train_end", "on_train_epoch_start": "on_epoch_begin", "on_train_epoch_end": "on_epoch_end"},
    **{"on_train_batch_start": "on_batch", "on_train_batch_end": "on_substep_end, on_step_end"},
    **{"on_before_backward": "on_loss", "on_after_backward": "on_substep_end, on_gradients"},
    **{"on_before_optimizer_step": "on_gradients", "on_before_zero_grad": "on_optimizer_step"},
    **{"on_validation_start": "on_evaluate_begin", "on_validation_epoch_start": "on_evaluate_begin"},
    **{"on_validation_batch_end": "on_prediction_step", "on_validation_epoch_end": "on_evaluate_end"},
    **{"on_validation_end": "on_evaluate_end", "on_predict_batch_end": "on_prediction_step"},
    **{"on_predict_end": "on_predict", "on_predict_epoch_end": "on_predict"},
    **{"state_dict": "state_dict", "load_state_dict": "load_state_dict"},
}
"""Hook of Lightning -> the events at which the hook is called. `docs/plugins/migrating.md` has the table."""

_BATCH_HOOKS = ("on_train_batch_start", "on_train_batch_end")
_PER_BATCH: dict[str, tuple[str, ...]] = {
    "on_batch": ("on_train_batch_start",),
    "on_loss": ("on_before_backward",),
    "on_substep_end": ("on_after_backward", *_BATCH_HOOKS),
    "on_gradients": ("on_after_backward", "on_before_optimizer_step"),
    "on_optimizer_step": ("on_before_zero_grad",),
    "on_step_end": _BATCH_HOOKS,
    "on_prediction_step": ("on_validation_batch_end", "on_predict_batch_end"),
}
"""Event of each batch -> the hooks that the handler of this event calls."""

WITHOUT_EVENT: dict[str, str] = {
    "on_sanity_check_start": "trainbus has no sanity check. Use `eval_on_start=True` and `on_validation_start`.",
    "on_sanity_check_end": "trainbus has no sanity check. Use `eval_on_start=True` and `on_validation_end`.",
    "on_validation_batch_start": "No event precedes an evaluation batch. Use `on_validation_batch_end`.",
    "on_predict_batch_start": "No event precedes a prediction batch. Use `on_predict_batch_end`.",
    "on_predict_start": "No event precedes a prediction. Use `setup`, whose `stage` is 'predict' then.",
    "on_predict_epoch_start": "No event precedes a prediction. Use `setup`, whose `stage` is 'predict' then.",
    "on_save_checkpoint": "A checkpoint of trainbus is not a dict. Return your values from `state_dict`.",
    "on_load_checkpoint": "A checkpoint of trainbus is not a dict. Restore your values in `load_state_dict`.",
    **dict.fromkeys(
        [f"on_test_{when}" for when in ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end")],
        "trainbus has no test loop. Use `on_validation_*`, and `trainer.evaluate(dataset)`.",
    ),
}
"""Hook of Lightning without a corresponding event -> the end of the error: what to do."""

WORKING = (
    *(known.EarlyStopping, known.LearningRateMonitor, known.StochasticWeightAveraging),
    *(known.Timer, known.DeviceStatsMonitor, known.LambdaCallback),
)
"""The callbacks of the package lightning that work on trainbus."""

INSTEAD: dict[str, str] = {
    "ModelCheckpoint": "Checkpoint(every(1, 'epoch'), keep=Keep(best=1))",
    "OnExceptionCheckpoint": "SaveOnException()",
    "GradientAccumulationScheduler": "TrainingArguments(gradient_accumulation_schedule=...)",
    "RichProgressBar": "Progress()",
    "TQDMProgressBar": "Progress()",
    "ProgressBar": "Progress()",
    "BaseFinetuning": "Freeze(...)",
    "BackboneFinetuning": "Freeze(...)",
    "BatchSizeFinder": "TrainingArguments(auto_find_batch_size=True)",
    "LearningRateFinder": "FindLearningRate()",
    "WeightAveraging": "EMA()",
    "EMAWeightAveraging": "EMA()",
    "BasePredictionWriter": "trainer.predict(dataset), and write its result",
}
"""Callback of the package lightning that does not work on trainbus -> what to use instead, for the error."""


@dataclass
class Lightning(Callback):
    """Runs a callback of Lightning: at each event, calls the corresponding hook of the callback.

    Write `callbacks=[Lightning(EarlyStopping("eval_loss", patience=3))]`. The argument `trainer`
    of each hook is a view of the run. The view has the attributes that callbacks of Lightning read. The argument
    `pl_module` is your model, if the model is a `LightningModule`. Otherwise, it is a `LightningModule` with your model
    in the attribute `model`.
    If a hook sets `trainer.should_stop = True`, the run stops. Values that the callback of Lightning logs become part
    of the next log of the run.

    Six callbacks of the package lightning work on trainbus: `EarlyStopping`, `LearningRateMonitor`,
    `StochasticWeightAveraging`, `Timer`, `DeviceStatsMonitor` and `LambdaCallback`.

    Raises:
        ArgumentError: for any other callback of the package lightning, or if a hook of your callback has no
            corresponding event. The error says what to use instead.
    """

    callback: Any = None
    """The callback of Lightning. None: the run calls no hooks."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. Default: `Lightning.` and the class of `callback`."""
    _target: Any = field(default=None, init=False, repr=False, compare=False)
    _view: TrainerView | None = field(default=None, init=False, repr=False, compare=False)
    _module: Any = field(default=None, init=False, repr=False, compare=False)
    _batch: int = field(default=0, init=False, repr=False, compare=False)
    _predicted: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._target = known.Callback() if self.callback is None else self.callback
        refuse_unusable(self._target)
        if self.callback is not None:
            self.id = self.id or f"Lightning.{type(self.callback).__name__}"
        for event, hooks in _PER_BATCH.items():
            if not any(is_overridden(self._target, hook) for hook in hooks):
                setattr(self, event, None)  # not called in each step for nothing

    def _call(self, hook: str, *values: Any) -> None:
        assert self._view is not None
        getattr(self._target, hook)(self._view, self._module, *values)
        self._view.request_stop()

    # Sessions.

    def on_setup(self, run: Run) -> None:
        self._view, self._module = TrainerView(run, self._target), ModuleView.of(run)
        self._module._trainer = self._view
        self._view.lightning_module = self._module
        self._target.setup(self._view, self._module, stage=self._view.stage)

    def on_train_begin(self, run: Run) -> None:
        assert self._view is not None
        self._view.attach_optimizer()
        self._call("on_fit_start")
        self._call("on_train_start")

    def on_train_end(self, run: Run) -> None:
        assert self._view is not None
        self._view.current_epoch = run.position.epoch if run.position is not None else 0
        self._call("on_train_end")
        self._call("on_fit_end")

    def on_exception(self, exception: BaseException) -> None:
        if self._view is not None:
            self._call("on_exception", exception)

    def on_close(self, run: Run) -> None:
        if self._view is not None:
            self._target.teardown(self._view, self._module, stage=self._view.stage)
        self._view = self._module = None

    # Steps.

    def on_epoch_begin(self, run: Run) -> None:
        assert self._view is not None
        position = run.position
        self._view.current_epoch, self._batch = (position.epoch, position.batches) if position is not None else (0, 0)
        self._call("on_train_epoch_start")
        if self._view.schedule_changed:
            run.services.replace_schedule(HeldSchedule(run.lr_scheduler, run.optimizer))

    def on_epoch_end(self) -> None:
        assert self._view is not None
        self._view.step_schedules()
        self._call("on_train_epoch_end")

    def on_batch(self, batch: Any) -> None:
        self._call("on_train_batch_start", batch, self._batch)

    def on_loss(self, loss: Any) -> None:
        self._call("on_before_backward", loss)

    def on_substep_end(self, batch: Any, loss: Any) -> None:
        self._call("on_after_backward")
        self._end_batch(batch, loss)

    def on_gradients(self, optimizer: Any) -> None:
        self._call("on_after_backward")
        self._call("on_before_optimizer_step", optimizer)

    def on_optimizer_step(self, optimizer: Any) -> None:
        self._call("on_before_zero_grad", optimizer)

    def on_step_end(self, batch: Any, loss: Any) -> None:
        self._end_batch(batch, loss)

    def _end_batch(self, batch: Any, loss: Any) -> None:
        number, self._batch = self._batch, self._batch + 1
        self._call("on_train_batch_end", {"loss": loss}, batch, number)

    # Evaluations and logs.

    def on_evaluate_begin(self) -> None:
        assert self._view is not None
        self._predicted = 0
        self._call("on_validation_start")
        self._call("on_validation_epoch_start")

    def on_prediction_step(self, run: Run, batch: Any) -> None:
        number, self._predicted = self._predicted, self._predicted + 1
        hook = "on_predict_batch_end" if run.mode == "predict" else "on_validation_batch_end"
        self._call(hook, None, batch, number, 0)

    def on_evaluate_end(self, metrics: dict[str, Any]) -> None:
        assert self._view is not None
        self._view.note(metrics)
        self._call("on_validation_epoch_end")
        self._call("on_validation_end")

    def on_predict(self, metrics: dict[str, Any]) -> None:
        self._call("on_predict_epoch_end")
        self._call("on_predict_end")

    @order(Stage.MEASURE)
    def on_log(self, run: Run, logs: dict[str, Any]) -> None:
        if self._view is not None:
            logs.update(self._view.take_logged())
            self._view.note(logs)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._target.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._target.load_state_dict(state)


def is_overridden(callback: Any, hook: str) -> bool:
    """Return whether a callback of Lightning overrides a hook."""
    own = getattr(type(callback), hook, None)
    return own is not getattr(known.Callback, hook, None) or hook in getattr(callback, "__dict__", ())


def refuse_unusable(callback: Any) -> None:
    """Check that a callback of Lightning works on trainbus.

    Raises:
        ArgumentError: if the callback does not work. The error says what to use or change.
    """
    name = type(callback).__name__
    if not isinstance(callback, known.Callback):
        raise ArgumentError(
            f"Lightning({name}): it is not a `lightning.pytorch.Callback`. List it without `Lightning`."
        )
    for cls in type(callback).__mro__:
        if cls.__name__ in INSTEAD and _is_of_lightning(cls):
            more = ""
            if cls.__name__ == "GradientAccumulationScheduler":
                more = f" Its schedule is {getattr(callback, 'scheduling', {})}."
            raise ArgumentError(f"Lightning({name}) does not work: use {INSTEAD[cls.__name__]} instead.{more}")
    if type(callback) is known.Callback:
        return
    if _is_of_lightning(type(callback)) and not isinstance(callback, WORKING):
        working = ", ".join(cls.__name__ for cls in WORKING)
        raise ArgumentError(f"Lightning({name}) does not work. These callbacks of Lightning do: {working}.")
    if getattr(callback, "_check_on_train_epoch_end", None):
        raise ArgumentError(
            f"Lightning({name}) reads metrics at the end of the training epoch, but the evaluation comes later. Set "
            "check_on_train_epoch_end=False."
        )
    if isinstance(callback, WORKING) and _is_of_lightning(type(callback)):
        return
    for hook, remedy in WITHOUT_EVENT.items():
        if is_overridden(callback, hook) and not _is_of_lightning_hook(callback, hook):
            raise ArgumentError(f"Lightning({name}): its hook {hook!r} has no event here. {remedy}")


def _is_of_lightning(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")


def _is_of_lightning_hook(callback: Any, hook: str) -> bool:
    function = getattr(type(callback), hook, None)
    return getattr(function, "__module__", "").partition(".")[0] in ("lightning", "pytorch_lightning")
