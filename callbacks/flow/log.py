"""Log the training loss, gradient norm and learning rate when they are due, and the summary at the end."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ...engine.arguments import TrainingArguments
from ...engine.loss.loss_window import LossWindow
from ...engine.run import Run
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from ...events.triggers import Trigger, at, at_end, every, never
from ..base.cadence import Cadence
from ..stopping.nan_guard import NaNGuard

logger = logging.getLogger(__name__)


@dataclass
class Log(Cadence):
    """Logs the mean loss per step since the last time, the gradient norm before clipping, and the learning rate.

    Several may run side by side, each with a mean of its own: give all but one a `prefix`.
    """

    flag = "log"
    set_apart = ", or give one of them a prefix"
    arguments = ("logging_strategy", "logging_steps", "logging_first_step")

    trigger: Trigger = field(default_factory=lambda: every(500) | at_end())
    """When."""
    prefix: str = ""
    """Put before `loss`; a logger with a prefix logs the loss alone, and only when its own trigger is due."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _window: LossWindow | None = field(default=None, init=False, repr=False, compare=False)
    _saved: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Log:
        trigger = from_strategy(args.logging_strategy, args.logging_steps)
        return cls(trigger | at(1) if args.logging_first_step else trigger)

    @property
    def aside(self) -> str:
        """The prefix, for one beside the main logger."""
        return self.prefix

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        self._window = run.losses.open(run.state.global_step) if self.prefix else run.losses.main
        if self.prefix and self._saved:
            self._window.load_state_dict(self._saved)
            self._saved = {}

    @order(Stage.ACT)
    def on_log_due(self, run: Run, control: TrainerControl, requested_by: frozenset[str]) -> None:
        step = run.state.global_step
        assert self._window is not None
        if not serves(self, control.speaker, requested_by, run) or step == self._window.since:
            return
        loss = self._window.read(step)
        self._warn(run, loss)
        logs: dict[str, Any] = {f"{self.prefix}loss": loss}
        if not self.prefix:
            norm = run.grad_norm
            if norm is not None:
                logs["grad_norm"] = norm.item() if isinstance(norm, torch.Tensor) else norm
            logs["learning_rate"] = run.learning_rate
        run.log(logs)

    @order(Stage.PREPARE)
    def on_train_end(self, run: Run) -> None:
        attached = run.bus.subscribers.values()
        if self is next((other for other in attached if isinstance(other, Log) and not other.prefix), None):
            run.services.log(run.summary())

    def _warn(self, run: Run, loss: float) -> None:
        if not math.isfinite(loss) and not self._warned:
            self._warned = True
            guarded = any(isinstance(callback, NaNGuard) for callback in run.bus.subscribers.values())
            remedy = (
                "NaNGuard looks at the gradients."
                if guarded
                else "Add NaNGuard() to the callbacks to raise, skip or stop at the first step whose gradients are not "
                "finite."
            )
            logger.warning("The training loss is %s at step %d. %s", *(loss, run.state.global_step, remedy))


def serves(callback: Cadence, own_id: str, requested_by: frozenset[str], run: Run) -> bool:
    """Say whether one of several callbacks of a kind does the work that is due.

    One that stands aside works only on its own request; the main one also on those of strangers, but not on theirs.
    """
    if own_id in requested_by or callback.aside:
        return own_id in requested_by
    attached = run.bus.subscribers
    return not all(isinstance(attached.get(requester), type(callback)) for requester in requested_by)


def from_strategy(strategy: Any, steps: float | None, after: float = 0, times: int = 0) -> Trigger:
    """Return the trigger that a strategy and its interval spell: `no`, `epoch` or `steps`, these at least some `times`.

    With `steps` the planned end of the run is due too, so that no run ends unseen.
    """
    match str(strategy):
        case "no":
            return never()
        case "epoch":
            return every(1, "epoch", after=after)
        case "steps":
            return every(steps or 500, after=after, times=times) | (
                at_end(early=False) if not after else _at_end_after(after)
            )
    raise ArgumentError(f"There is no strategy {strategy!r}: it is one of no, epoch, steps.")


def _at_end_after(after: float) -> Trigger:
    return at_end(early=False) & every(1, after=after)
