"""The callbacks of transformers under their names: aliases, and classes without an equivalent of another name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.bus import EventBus
from ..events.callback import Callback
from ..events.control import TrainerControl
from ..events.errors import ArgumentError
from ..events.stages import Stage
from ..events.state import TrainerState
from ..events.triggers import Moment, never
from .base.cadence import Cadence
from .flow.checkpoint import Checkpoint
from .flow.evaluate import Evaluate
from .flow.log import Log
from .monitor.progress import Progress
from .stopping.early_stopping import EarlyStopping
from .stopping.stop_at_max_steps import StopAtMaxSteps

TrainerCallback = Callback
ProgressCallback = Progress


class DefaultFlowCallback(Callback):
    """Decides when to log, evaluate, save and stop, from the arguments.

    By default four callbacks decide this: `Log`, `Evaluate`, `Checkpoint` and `StopAtMaxSteps`. If a
    `DefaultFlowCallback` or a subclass is in the list, it decides, and the first three only do the work.
    `trainer.remove_callback(DefaultFlowCallback)` removes the decisions of all of them: then the run logs, evaluates,
    saves and stops early only if another callback requests it.
    """

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Request what is due at the end of a step, and stop after the last step."""
        self._request(args, control, _moment("step", state))
        if state.global_step >= state.max_steps:
            control.request("training_stop", f"all {state.max_steps} steps are done")
        return control

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Request what is due at the end of an epoch."""
        self._request(args, control, _moment("epoch", state))
        return control

    def _request(self, args: TrainingArguments, control: TrainerControl, now: Moment) -> None:
        for kind in (Log, Evaluate, Checkpoint):
            cadence = kind.from_arguments(args)
            if cadence.trigger.due(now):
                control.request(kind.flag, f"due by {cadence.trigger!r}")

    @classmethod
    def remove_from(cls, bus: EventBus) -> Callback | None:
        """Detach every callback of this class, and end the decisions of the default callbacks.

        Returns:
            The detached callback of this class; None if there was none.
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


def _moment(place: Any, state: TrainerState) -> Moment:
    last = state.global_step >= state.max_steps
    return Moment(place, state.global_step, state.epoch, state.max_steps, last=last and place == "step")


@dataclass
class EarlyStoppingCallback(Callback):
    """Stops when the metric of the arguments stops improving, under transformers' name and arguments.

    It reads `metric_for_best_model` and `greater_is_better`. `EarlyStopping("eval_loss", patience=3)` is the same
    without those arguments.

    Raises:
        ArgumentError: if the arguments set no `metric_for_best_model`.
    """

    early_stopping_patience: int = 1
    """The number of evaluations without improvement after which training stops."""
    early_stopping_threshold: float = 0.0
    """The least difference from the best value that counts as an improvement."""
    _stopping: EarlyStopping | None = field(default=None, init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._stopping = None

    def on_train_begin(self, args: TrainingArguments) -> None:
        if args.metric_for_best_model is None:
            raise ArgumentError(
                "EarlyStoppingCallback needs `metric_for_best_model` in the arguments. Set it, such as to 'eval_loss'."
            )
        waited = self._stopping.state_dict() if self._stopping is not None else None
        self._stopping = EarlyStopping(
            args.metric_for_best_model,
            self.early_stopping_patience,
            self.early_stopping_threshold,
            "max" if args.greater_is_better else "min",
        )
        if waited is not None:
            self._stopping.load_state_dict(waited)

    def on_evaluate_end(self, run: Run, control: TrainerControl, metrics: dict[str, Any]) -> None:
        # As in transformers, an evaluation before the first step does not set the best value.
        if self._stopping is not None and run.state.global_step > 0:
            self._stopping.on_evaluate_end(run, control, metrics)

    def state_dict(self) -> dict[str, Any]:
        return self._stopping.state_dict() if self._stopping is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._stopping = EarlyStopping(patience=self.early_stopping_patience)
            self._stopping.load_state_dict(state)


class PrinterCallback(Callback):
    """Prints each logged dict, as transformers' callback of this name does."""

    stage = Stage.REPORT

    def on_log(self, state: TrainerState, logs: dict[str, Any]) -> None:
        """Print on the first rank of each machine."""
        if state.is_local_process_zero:
            print({key: value for key, value in logs.items() if key != "total_flos"})
