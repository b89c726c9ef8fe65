"""Log the training loss, gradient norm and learning rate when due, and the totals of the training at the end."""

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
    """Logs the mean loss of the steps since the previous log, the gradient norm before clipping, and the learning rate.

    Every trainer has a `Log`, and the training arguments configure it. A run may have several `Log` callbacks. Each
    `Log` computes the mean loss since its own previous log. Give each additional `Log` a prefix:
    `Log(log_spaced(8), prefix="sparse_")`. When training ends, the `Log` without a prefix also logs the totals of the
    training, such as `train_runtime`.
    """

    flag = "log"
    alternative = ", or give one of them a prefix"
    arguments = ("logging_strategy", "logging_steps", "logging_first_step")

    trigger: Trigger = field(default_factory=lambda: every(500) | at_end())
    """When to log. Default: every 500 steps and at the end."""
    prefix: str = ""
    """The prefix of the name `loss` in the log. A `Log` with a prefix logs the loss and no other value."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _window: LossWindow | None = field(default=None, init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Log:
        trigger = from_strategy(args.logging_strategy, args.logging_steps)
        return cls(trigger | at(1) if args.logging_first_step else trigger)

    @property
    def variant(self) -> str:
        """The prefix. It is an empty text for the `Log` that the training arguments configure."""
        return self.prefix

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        self._window = run.losses.open(run.state.global_step, self.prefix) if self.prefix else run.losses.main

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
                "NaNGuard checks the gradients."
                if guarded
                else "Add NaNGuard() to the callbacks: it raises, skips or stops at the first step with gradients that "
                "are not finite."
            )
            logger.warning("The training loss is %s at step %d. %s", loss, run.state.global_step, remedy)


def serves(callback: Cadence, own_id: str, requested_by: frozenset[str], run: Run) -> bool:
    """Return whether a `Log` or `Evaluate` must do the work that was requested at this step.

    A callback does the work that it requested itself. The callback with an empty `variant`, such as the `Log` without a
    prefix, also does the work that callbacks of other classes requested.

    Args:
        callback: the callback.
        own_id: the id of the callback on the bus.
        requested_by: the ids of the subscribers that requested the work.
        run: the run.
    """
    if own_id in requested_by or callback.variant:
        return own_id in requested_by
    attached = run.bus.subscribers
    return not all(isinstance(attached.get(requester), type(callback)) for requester in requested_by)


def from_strategy(strategy: Any, steps: float | None, after: float = 0, times: int = 0) -> Trigger:
    """Return the trigger for a strategy of the arguments, such as `logging_strategy`.

    Args:
        strategy: `no`, `epoch` or `steps`. With `steps`, the trigger is also due at the last planned step.
        steps: the interval of the strategy `steps`; below 1, a fraction of the run. None: 500 steps.
        after: the trigger is not due before this step (strategy `steps`) or this epoch (strategy `epoch`).
        times: for the strategy `steps`, the minimum number of times that the trigger is due in a run. If `steps` is too
            large for this number, the interval is shorter. 0: no minimum.

    Raises:
        ArgumentError: for another strategy.
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
    raise ArgumentError(f"The strategy {strategy!r} is unknown. Set no, epoch or steps.")


def _at_end_after(after: float) -> Trigger:
    return at_end(early=False) & every(1, after=after)
