"""Callbacks with the names of transformers. `TrainerCallback` and `ProgressCallback` are aliases."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ..engine.api.console import say
from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.bus import EventBus
from ..events.callback import Callback
from ..events.capabilities import Capability
from ..events.control import TrainerControl
from ..events.errors import ArgumentError
from ..events.handlers import in_either_style
from ..events.stages import Stage
from ..events.state import TrainerState
from ..events.triggers import Moment, never
from .base.cadence import Cadence
from .base.metric_names import check_measured, full_name, require_evaluations, value_of
from .flow.checkpoint import Checkpoint
from .flow.evaluate import Evaluate
from .flow.log import Log
from .monitor.progress import Progress
from .stopping.early_stopping import StopRule
from .stopping.stop_at_max_steps import StopAtMaxSteps

TrainerCallback = Callback
ProgressCallback = Progress


class DefaultFlowCallback(Callback):
    """Decides from the training arguments when to log, evaluate, save and stop.

    By default, a trainer has no `DefaultFlowCallback`. The callbacks `Log`, `Evaluate`, `Checkpoint` and
    `StopAtMaxSteps` make these decisions. If you add a `DefaultFlowCallback` or an instance of a subclass, this
    instance makes the decisions. `Log`, `Evaluate` and `Checkpoint` then only do the requested work.

    `trainer.remove_callback(DefaultFlowCallback)` also works without a `DefaultFlowCallback`. After this call, no
    callback makes these decisions from the training arguments. Only the requests of other callbacks start a log, an
    evaluation or a save, or stop the run early.
    """

    previews = True
    _saves = _evaluates = False

    def on_setup(self, args: TrainingArguments) -> None:
        """Store whether the arguments request evaluations and checkpoints, for the method `has` of this callback."""
        self._evaluates = Evaluate.from_arguments(args).trigger != never()
        self._saves = Checkpoint.from_arguments(args).trigger != never()

    def has(self, capability: Capability) -> bool:
        if capability is Capability.PLANS_EVALUATIONS:
            return self._evaluates
        return self._saves if capability is Capability.WRITES_CHECKPOINTS else super().has(capability)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """At the end of a step, request logs, evaluations and saves that are due. Stop after the last step."""
        self._request(args, control, _moment("step", state))
        if state.global_step >= state.max_steps:
            control.request("training_stop", f"all {state.max_steps} steps are done")
        return control

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """At the end of an epoch, request logs, evaluations and saves that are due."""
        run = kwargs.get("run")
        cut = run is not None and run.moment("epoch").cut  # the resumed run reaches the end of this epoch
        self._request(args, control, _moment("epoch", state, cut))
        return control

    def _request(self, args: TrainingArguments, control: TrainerControl, now: Moment) -> None:
        for kind in (Log, Evaluate, Checkpoint):
            cadence = kind.from_arguments(args)
            if cadence.trigger.due(now):
                control.request(kind.flag, f"due by {cadence.trigger!r}")

    @classmethod
    def remove_from(cls, bus: EventBus) -> Callback | None:
        """Detach every `DefaultFlowCallback` and `StopAtMaxSteps`.

        `Log`, `Evaluate` and `Checkpoint` stay attached with the trigger `never()`, so that they request nothing.

        Returns:
            The `DefaultFlowCallback` that was attached last; None if there was none.
        """
        found = None
        for owner_id, callback in bus.subscribers.items():
            if isinstance(callback, DefaultFlowCallback):
                found = callback
            if isinstance(callback, (DefaultFlowCallback, StopAtMaxSteps)):
                bus.detach(owner_id)
            elif isinstance(callback, Cadence):
                callback.trigger = never()
        return found


def _moment(place: Any, state: TrainerState, cut: bool = False) -> Moment:
    last = state.global_step >= state.max_steps
    return Moment(place, state.global_step, state.epoch, state.max_steps, last=last and place == "step", cut=cut)


class ExportableState:
    """Base class for callbacks with a state in checkpoints, like transformers' `ExportableState`.

    A resume restores the callback state. The method `state` returns `{"args": ..., "attributes": ...}`: the arguments
    of the constructor, and other attributes to restore.
    """

    def state(self) -> dict[str, Any]:
        """Return the arguments of the constructor under `args`, and other values under `attributes`."""
        raise NotImplementedError("Return {'args': {...}, 'attributes': {...}} from `state`.")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Any:
        """Build a callback from a dict that the method `state` returned."""
        instance = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(instance, name, value)
        return instance


@dataclass
class EarlyStoppingCallback(ExportableState, Callback):
    """Stops training when `metric_for_best_model` stops improving.

    The callback of transformers has the same name and the same arguments.

    The callback reads the training arguments `metric_for_best_model` and `greater_is_better`. The callback
    `EarlyStopping("eval_loss", patience=3)` of trainbus does not read these arguments, because its fields set the
    metric.

    A subclass of `EarlyStoppingCallback` may override `check_metric_value` to change what counts as an improvement. A
    subclass may override `on_evaluate` to replace the whole decision.

    Raises:
        ArgumentError: if the training argument `metric_for_best_model` is not set, if `early_stopping_patience` is
            below 1, if the run makes no evaluations, or if no evaluation measures the metric.
    """

    previews = True

    early_stopping_patience: int = 1
    """Training stops after this many consecutive evaluations without improvement."""
    early_stopping_threshold: float | None = 0.0
    """A value is an improvement if it is better than the best value by more than this difference. None: 0."""
    early_stopping_patience_counter: int = field(default=0, init=False, repr=False, compare=False)
    """The number of evaluations since the last improvement."""
    _best: float | None = field(default=None, init=False, repr=False, compare=False)
    _reason: str = field(default="", init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.early_stopping_patience_counter, self._best = 0, None

    @in_either_style
    def on_train_begin(self, *, run: Run, args: TrainingArguments) -> None:
        if args.metric_for_best_model is None:
            raise ArgumentError(
                "EarlyStoppingCallback needs `metric_for_best_model` in the arguments. Set it, such as to 'eval_loss'."
            )
        if self.early_stopping_patience < 1:
            raise ArgumentError(
                f"EarlyStoppingCallback({self.early_stopping_patience}): set a patience of 1 or more evaluations."
            )
        require_evaluations(run, "EarlyStoppingCallback")
        check_measured(full_name(str(args.metric_for_best_model)), run, "EarlyStoppingCallback")

    @in_either_style
    def on_evaluate(self, *, run: Run, control: TrainerControl, metrics: dict[str, Any]) -> None:
        """Request a stop after too many evaluations without improvement.

        This method has an effect only if a subclass overrides it and calls `super().on_evaluate()`. Without an
        override, `on_evaluate_end` does this work.
        """
        if self._is_overridden and full_name(str(run.args.metric_for_best_model)) in metrics:
            self._decide(run, control, metrics)

    def on_evaluate_end(self, run: Run, control: TrainerControl, metrics: dict[str, Any]) -> None:
        """Request a stop after too many evaluations without improvement.

        If a subclass overrides `on_evaluate`, do nothing, because `on_evaluate` then decides.
        """
        if not self._is_overridden:
            self._decide(run, control, metrics)

    @property
    def _is_overridden(self) -> bool:
        return type(self).on_evaluate is not EarlyStoppingCallback.on_evaluate

    def _decide(self, run: Run, control: TrainerControl, metrics: dict[str, Any]) -> None:
        # As in transformers, an evaluation before the first step does not set the best value.
        if run.mode != "train" or run.state.global_step == 0:
            return
        name = full_name(str(run.args.metric_for_best_model))
        value = value_of(name, metrics, run, "EarlyStoppingCallback")
        if value is None:
            return
        self._reason = ""
        self.check_metric_value(run.args, run.state, control, value)
        waited = self.early_stopping_patience_counter
        if self._reason or waited >= self.early_stopping_patience:
            reason = f"{name} has not improved for {waited} {'evaluation' if waited == 1 else 'evaluations'}"
            control.request("training_stop", self._reason or reason)

    def check_metric_value(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metric_value: float
    ) -> None:
        """Update `early_stopping_patience_counter` after an evaluation.

        Override this method to change what counts as an improvement.

        Args:
            args: the training arguments.
            state: the progress of the run.
            control: the flags.
            metric_value: the value of `metric_for_best_model`.
        """
        if self._best is None and math.isnan(metric_value):
            # As in transformers, the first evaluation starts the count, and any number is better than NaN.
            self._best = -math.inf if args.greater_is_better else math.inf
            return
        rule = StopRule(
            full_name(str(args.metric_for_best_model)),
            bool(args.greater_is_better),
            self.early_stopping_patience,
            self.early_stopping_threshold or 0.0,
            finite=False,  # as in transformers, NaN counts as an evaluation without improvement
            best=self._best,
            waited=self.early_stopping_patience_counter,
        )
        self._reason = rule.update(metric_value)
        self._best, self.early_stopping_patience_counter = rule.best, rule.waited

    def state(self) -> dict[str, Any]:
        """Return the settings and the counter in the format of transformers' `ExportableState`."""
        names = ("early_stopping_patience", "early_stopping_threshold")
        counter = {"early_stopping_patience_counter": self.early_stopping_patience_counter}
        return {"args": {name: getattr(self, name) for name in names}, "attributes": counter}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "waited": self.early_stopping_patience_counter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._best, self.early_stopping_patience_counter = state["best"], state["waited"]


class PrinterCallback(Callback):
    """Prints each dict of logged values, like transformers' `PrinterCallback`."""

    stage = Stage.REPORT

    @in_either_style
    def on_log(self, *, state: TrainerState, logs: dict[str, Any]) -> None:
        """Print the logged values without `total_flos`, on the first rank of each machine."""
        if state.is_local_process_zero:
            say(str({key: value for key, value in logs.items() if key != "total_flos"}))

    @classmethod
    def remove_from(cls, bus: EventBus) -> Any:
        """Detach the first callback of this class. If there is none, detach a `Progress` that only prints lines."""
        return super().remove_from(bus) or _pop_progress(bus, lines=True)


def pop_class(bus: EventBus, kind: type) -> Any:
    """Detach the first callback of a class. Return the callback; None if there is none.

    For a class of transformers, detach the callback of trainbus that does the same work.

    Args:
        bus: the bus of the trainer.
        kind: the class.
    """
    if issubclass(kind, Callback):
        return kind.remove_from(bus)
    name = kind.__name__ if kind.__module__.startswith("transformers.") else ""
    # transformers attaches its flow before the callbacks of the program, and its printing after them.
    if name == "DefaultFlowCallback" and any(isinstance(each, StopAtMaxSteps) for each in bus.subscribers.values()):
        return DefaultFlowCallback.remove_from(bus) or DefaultFlowCallback()  # a program may attach it again
    found = next((callback for callback in bus.subscribers.values() if isinstance(callback, kind)), None)
    if found is not None:
        bus.detach(found)
    elif name == "PrinterCallback":
        return PrinterCallback.remove_from(bus)
    elif name in ("ProgressCallback", "NotebookProgressCallback"):
        return _pop_progress(bus, lines=False)
    return found


def _pop_progress(bus: EventBus, lines: bool) -> Progress | None:
    for callback in bus.subscribers.values():
        if isinstance(callback, Progress) and (callback.bar is False) == lines:
            bus.detach(callback)
            return callback
    return None
