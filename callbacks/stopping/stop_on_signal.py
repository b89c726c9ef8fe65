"""End a training in good order, with a checkpoint, when the system or the user asks for it by a signal."""

from __future__ import annotations

import logging
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import EvaluationStopped
from ...events.stages import Stage, order

logger = logging.getLogger(__name__)


class Stopped(SystemExit):
    """Ends the program after a training that a signal stopped; its code is 128 plus the number of the signal."""

    def __init__(self, number: int, reason: str) -> None:
        """End it because of a signal, by its number; `reason` says its name, and where or when it came."""
        super().__init__(128 + number)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Interrupted(Stopped, KeyboardInterrupt):
    """The same for Ctrl-C, so that an `except KeyboardInterrupt` sees it."""


@dataclass
class StopOnSignal(Callback):
    """On SIGTERM, SIGINT (Ctrl-C) or SIGUSR1: finish the step, save, and end the program with 143, 130 or 138.

    The handler itself only notes the signal. An evaluation is left after its batch, and made up for on resume. A second
    Ctrl-C interrupts at once, and so does any signal while the training is still being built. Outside of training the
    signals do what they did before. Nothing is saved where the run saves nothing, unless `save` says so. Of several
    processes, one that gets a signal stops all, after the same step or batch of an evaluation, and all end with its
    code; of several signals, the code is that of the largest number.
    """

    local = True
    arguments = ("enable_jit_checkpoint",)

    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGUSR1")
    """The signals, by name."""
    save: bool = False
    """Whether to save even where the run has no checkpoints."""
    _noted: int = field(default=0, init=False, repr=False, compare=False)
    _where: str = field(default="", init=False, repr=False, compare=False)
    _interrupted: bool = field(default=False, init=False, repr=False, compare=False)
    _trains: bool = field(default=False, init=False, repr=False, compare=False)
    _previous: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StopOnSignal:
        return cls(save=args.enable_jit_checkpoint)

    @order(Stage.PREPARE)
    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._where, self._interrupted, self._trains = "", False, False
            if self._noted:  # in a training that an error ended, as one for which memory did not suffice
                self._stop(f"{self._reason}, before the first step")
            if threading.current_thread() is threading.main_thread():  # Python lets no other one set handlers
                for name in self.signals:
                    number = getattr(signal, name, None)
                    if number is not None:  # Windows has fewer of them
                        self._previous[number] = signal.signal(number, self._note)

    @order(Stage.PREPARE)
    def on_train_begin(self) -> None:
        self._trains = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        interrupts = number == signal.SIGINT
        if interrupts and (self._interrupted or not self._trains):
            self._noted = 0
            raise KeyboardInterrupt
        if not self._trains:
            raise Stopped(number, f"{signal.Signals(number).name}, before the first step")
        self._noted, self._interrupted = self._noted or number, self._interrupted or interrupts

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        if self._noted:
            self._ask(run, control)

    def on_epoch_end(self, run: Run, control: TrainerControl) -> None:
        if self._noted:
            self._ask(run, control)

    def on_prediction_step(self, run: Run, control: TrainerControl) -> None:
        if run.mode == "train" and self._anybody_noted(run):
            self._ask(run, control)
            raise EvaluationStopped(signal.Signals(self._noted).name)

    def _anybody_noted(self, run: Run) -> bool:
        """Note what any process noted, and say whether there is such; asked on all processes at the same moment."""
        noted = [number for (number,) in run.ranks.gather_numbers(self._noted)]
        largest = max(noted)
        if largest > self._noted:  # one that came while the others were asked stays noted
            self._noted, self._where = largest, f", on rank {noted.index(largest)}"
        return largest > 0

    def _ask(self, run: Run, control: TrainerControl) -> None:
        reason = self._reason
        if not control.should_training_stop:
            logger.warning("%s: the training ends after this step.", reason)
        control.request("training_stop", reason)
        if self.save or run.saves:
            control.request("save", reason)

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run) -> None:
        if self._anybody_noted(run):
            if run.args.should_save:
                logger.warning("%s: %s", self._reason, _how_to_go_on(run))
            self._stop(self._reason)

    def _stop(self, reason: str) -> NoReturn:
        noted, self._noted = self._noted, 0
        raise (Interrupted if noted == signal.SIGINT else Stopped)(noted, reason)

    @property
    def _reason(self) -> str:
        return signal.Signals(self._noted).name + self._where

    @order(Stage.RELEASE)
    def on_close(self, run: Run) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            signal.signal(number, handler)
        if self._noted and run.exception is None:  # it came after the training had looked for it the last time
            late, self._noted = self._noted, 0
            signal.raise_signal(late)


def _how_to_go_on(run: Run) -> str:
    saved, step = run.checkpoint, run.state.global_step
    if saved is None or saved.step != step or not saved.path.is_dir():
        return f"the training ended after step {step}, which is not saved."
    return f"step {step} is saved in {saved.path}; `resume_from_checkpoint=True` goes on from there."
