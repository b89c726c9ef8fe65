"""Stop training with a checkpoint when the process receives a signal."""

from __future__ import annotations

import logging
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from ...engine.api.console import is_interactive
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.activity import EVALUATION
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.control import TrainerControl
from ...events.errors import EvaluationStopped
from ...events.stages import Stage, order

logger = logging.getLogger(__name__)


class Stopped(SystemExit):
    """Ends the program after a signal stopped training. The exit code is 128 plus the number of the signal."""

    def __init__(self, number: int, reason: str) -> None:
        """Store the exit code for the signal `number`.

        Args:
            number: the number of the signal.
            reason: a text with the name of the signal.
        """
        super().__init__(128 + number)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Interrupted(Stopped, KeyboardInterrupt):
    """Ends the program after Ctrl-C. `except KeyboardInterrupt` catches this exception too."""


class CellInterrupted(KeyboardInterrupt):
    """Ends the cell of a notebook, or the input of an interactive Python, after Ctrl-C.

    A `SystemExit` instead would end an interactive Python. In a notebook, it would print a hint about how to exit.
    """

    def __init__(self, reason: str) -> None:
        """Store the reason, a text with the name of the signal."""
        super().__init__(reason)
        self.reason = reason


BY_SIGNAL = (Stopped, CellInterrupted)
"""The exceptions that end a training after a signal. Each has the attribute `reason`."""


@dataclass
class StopOnSignal(Callback):
    """Finishes the step, saves a checkpoint and stops the run after SIGTERM, SIGINT (Ctrl-C), SIGUSR1 or SIGHUP.

    Every trainer has a `StopOnSignal`. With this callback, a cluster can preempt a run without loss of steps: restart
    the program with `resume_from_checkpoint="auto"`. The exit code is 143 after SIGTERM, 130 after SIGINT, 138 after
    SIGUSR1 and 129 after SIGHUP.

    - If a signal arrives during a step, the run stops at the end of this step. If it arrives during a save, the run
      stops after the next step.
    - If a signal arrives during an evaluation of the callback `Evaluate`, the evaluation stops after its current batch.
      A resumed run repeats this evaluation.
    - If a signal arrives during another evaluation or prediction, such as a call of `run.evaluate()` in a handler, the
      evaluation completes. The run then stops after the current step. If the handler runs before the first step of a
      session, or during a save, the run stops after the next step.
    - If the run saves the last step of an epoch because of the signal, the resumed run does the work that is due at the
      end of this epoch, such as an evaluation.
    - If the step is saved already, the run does not save it again.
    - If a signal arrives during the last planned step of the run, the run does its work at the end of the epoch, and
      then saves the step.
    - If a signal arrives in `on_train_end`, the callback saves the last step too. It does not save the step if the
      weights have changed since the step, for example because the run has loaded the best model.
    - A second Ctrl-C interrupts at once. A signal before the first step interrupts at once, except during an
      evaluation or prediction in a handler.
    - The callback replaces the signal handlers of the process only during a training. After the training, the callback
      restores the earlier signal handlers.
    - The run saves a checkpoint if a callback of the run saves checkpoints, or if `save` is True.
    - With several ranks, a signal on one rank stops all ranks after the same step or evaluation batch. All ranks exit
      with the code of this signal. If a rank receives several signals, the first signal counts. If ranks receive
      different signals, the signal with the largest number counts.

    Raises:
        Stopped: at the end of training, after SIGTERM, SIGUSR1 or SIGHUP.
        Interrupted: at the end of training, after SIGINT.
        CellInterrupted: instead of `Interrupted` in a notebook, in IPython and in an interactive Python.
    """

    local = True
    capabilities = frozenset({Capability.INTERRUPTS})
    arguments = ("enable_jit_checkpoint",)

    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
    """The names of the signals. If the process ignores SIGHUP, for example under `nohup`, the callback ignores SIGHUP
    too."""
    save: bool = False
    """Whether to save a checkpoint when a signal stops the run, even if the run saves no other checkpoints. The
    argument `enable_jit_checkpoint` sets `save`."""
    _received: int = field(default=0, init=False, repr=False, compare=False)
    _detail: str = field(default="", init=False, repr=False, compare=False)
    _ended: str = field(default="", init=False, repr=False, compare=False)
    """The reason of the stop, if a signal ended the training; otherwise empty."""
    _interrupted: bool = field(default=False, init=False, repr=False, compare=False)
    _training: bool = field(default=False, init=False, repr=False, compare=False)
    _asked_at: int = field(default=-1, init=False, repr=False, compare=False)
    _marks: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The result of `_marks_of` at the end of the most recent epoch. Empty before the end of the first epoch."""
    _previous: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StopOnSignal:
        return cls(save=args.enable_jit_checkpoint)

    @order(Stage.PREPARE)
    def on_setup(self, run: Run) -> None:
        run.bus.signals["on_prediction_step"].rest(self, StopOnSignal.on_prediction_step, run.mode != "train")
        if run.mode == "train":
            self._detail, self._interrupted, self._training, self._asked_at = "", False, False, -1
            self._marks = []
            if self._received:  # the signal arrived in a session that ended with an error, such as out of memory
                self._stop(f"{self._reason}, before the first step")
            if threading.current_thread() is threading.main_thread():  # Python allows handlers in this thread only
                for name in self.signals:
                    number = getattr(signal, name, None)
                    # Windows has fewer signals, and `nohup` ignores SIGHUP so that the program survives its terminal.
                    if number is not None and not (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
                        self._previous[number] = signal.signal(number, self._store)

    @order(Stage.PREPARE)
    def on_train_begin(self) -> None:
        self._training = True

    def _store(self, number: int, frame: FrameType | None) -> None:
        interrupts = number == signal.SIGINT
        if interrupts and (self._interrupted or not self._training):
            self._received = 0
            raise KeyboardInterrupt
        if not self._training:
            raise Stopped(number, f"{signal.Signals(number).name}, before the first step")
        self._received, self._interrupted = self._received or number, self._interrupted or interrupts

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        if self._received:
            self._request_stop(run, control, "training stops after this step")

    def on_epoch_end(self, run: Run, control: TrainerControl) -> None:
        self._marks = _marks_of(run)
        # If this step is saved already, the run makes one more step. So no step is saved twice.
        if self._received and self._asked_at != run.state.global_step and not _calls_again(run, control):
            self._request_stop(run, control, "training stops after this epoch")

    def on_prediction_step(self, run: Run, control: TrainerControl) -> None:
        if run.mode != "train":
            return
        with run.activity(EVALUATION):  # a rank that waits here waits for a batch of another rank
            received = self._any_rank_received(run)
        if received and run.evaluation.repeats:
            self._request_stop(run, control, "the evaluation stops after this batch, and then training stops")
            raise EvaluationStopped(signal.Signals(self._received).name)
        # The caller of any other evaluation needs its metrics, because a resumed run does not call the handler again.
        if received and not _calls_again(run, control):
            self._request_stop(run, control, "the evaluation completes, and then training stops")

    @order(Stage.RELEASE)
    def on_evaluate_end(self, run: Run, control: TrainerControl) -> None:
        if run.mode == "train" and self._marks:
            self._marks = _marks_of(run)  # a callback may evaluate with other weights and then restore its own
        # After the last evaluation of a run, no later event requests the save.
        if self._received and run.mode == "train" and control.should_training_stop and not _calls_again(run, control):
            self._request_stop(run, control, "training stops after this evaluation")

    def _any_rank_received(self, run: Run) -> bool:
        """Exchange the received signals with all ranks. Return whether any rank received a signal.

        All ranks must call this method.
        """
        received = [number for (number,) in run.ranks.gather_numbers(self._received)]
        largest = max(received)
        if largest > self._received:  # a signal that arrives during the exchange stays stored
            self._received, self._detail = largest, f", on rank {received.index(largest)}"
        return largest > 0

    def _request_stop(self, run: Run, control: TrainerControl, place: str) -> None:
        """Request a stop, and a checkpoint if the run saves checkpoints or if the field `save` is True.

        If no stop is requested yet, the method logs the signal and `place`, a text that says where the run stops.
        """
        reason, self._asked_at = self._reason, run.state.global_step
        if not control.should_training_stop:
            logger.warning("%s: %s.", reason, place)
        control.request("training_stop", reason)
        if self.save or run.saves:
            control.request("save", reason)

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run, control: TrainerControl) -> None:
        if self._any_rank_received(run):
            self._save_last_step(run, control)
            self._ended = self._reason
            self._stop(self._reason)

    def _save_last_step(self, run: Run, control: TrainerControl) -> None:
        """Save the last step, if it is not saved yet and no rank has changed its weights after this step."""
        if not (self.save or run.saves) or _calls_again(run, control):
            return
        kept = run.ranks.gather_numbers(int(bool(self._marks) and self._marks == _marks_of(run)))
        if not all(same for (same,) in kept):
            return
        control.request("save", self._reason)
        if requested_by := control.begin("save"):
            run.announce("on_save_due", requested_by=requested_by)
            control.finish("save")

    def _stop(self, reason: str) -> NoReturn:
        received, self._received = self._received, 0
        if received == signal.SIGINT and is_interactive():
            raise CellInterrupted(reason)
        raise (Interrupted if received == signal.SIGINT else Stopped)(received, reason)

    @property
    def _reason(self) -> str:
        return signal.Signals(self._received).name + self._detail

    @order(Stage.PREPARE)  # closing events run in reverse order, so that signals are stored while the others close
    def on_close(self, run: Run) -> None:
        ended, self._ended = self._ended, ""
        if ended and run.args.should_save:  # only now, because handlers of `on_exception` may save
            logger.warning("%s: %s", ended, _how_to_resume(run))
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            signal.signal(number, handler)
        if self._received and run.exception is None:  # the signal arrived after the last check of the run
            if previous.get(self._received) == signal.SIG_DFL:  # it would end the process before the others close
                self._stop(self._reason)
            late, self._received = self._received, 0
            signal.raise_signal(late)


def _calls_again(run: Run, control: TrainerControl) -> bool:
    """Return whether a stop at the current step would make some handlers run twice for this step.

    This is True in two cases. The run saves or has saved this step: the stop would save it again. Or the session has
    not completed a step: a resumed run would call the handlers of `on_train_begin` at this step again.
    """
    step = run.state.global_step
    saved = run.checkpoint is not None and run.checkpoint.step == step
    return saved or "save" in control.serving or step == run.session.first_step


def _marks_of(run: Run) -> list[tuple[int, int]]:
    """Return (identity, version) of each parameter. A pair changes if its parameter is replaced or written."""
    found = run.model.parameters()
    return [(id(weight), 0 if weight.is_inference() else weight._version) for weight in found]


def _how_to_resume(run: Run) -> str:
    saved, step = run.checkpoint, run.state.global_step
    if saved is None or saved.step != step or not saved.path.is_dir():
        return f"training stopped after step {step}, which is not saved."
    return f"step {step} is saved in {saved.path}. Resume with `resume_from_checkpoint=True`."
