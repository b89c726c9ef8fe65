"""Detect NaN and infinite gradients before the update of the weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, NonFiniteError, nearest

logger = logging.getLogger(__name__)

ACTIONS = ("raise", "skip", "stop")
"""The values of `action`."""


@dataclass
class NaNGuard(Callback):
    """Checks before each update that the gradient norm is finite.

    One NaN or infinity in any gradient makes the norm NaN or infinite. The callback prevents an update with such a
    norm. `NaNGuard()` raises an error at the first step with such a norm. `NaNGuard("skip", limit=20)` skips up to 20
    consecutive updates. The logged loss includes the losses of skipped steps.

    With a loss scaler (fp16) the callback does nothing, because the scaler handles overflows. With stages 1 to 3 of
    DeepSpeed, the callback checks the norm after the step, because DeepSpeed computes the norm during the step. If
    DeepSpeed made an update with a norm that is not finite, the callback raises an error, whatever `action` is.

    Raises:
        ArgumentError: if `action` is unknown, or if `limit` is negative.
        NonFiniteError: if the norm of a step is not finite, and one of these conditions is true: `action` is `raise`;
            more than `limit` consecutive steps have such a norm; or the weights are already updated in this step, for
            example by DeepSpeed.
    """

    action: Literal["raise", "skip", "stop"] = "raise"
    """The action: `raise` an error, `skip` the update and continue, or skip the update and `stop` training after the
    step."""
    limit: int = 10
    """The largest number of consecutive updates that the callback skips. After `limit` consecutive skipped updates,
    one more step with a norm that is not finite raises an error."""
    skipped: int = field(default=0, init=False)
    """The number of skipped updates in this run so far."""
    _in_a_row: int = field(default=0, init=False, repr=False, compare=False)
    _skipped_before: int | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ArgumentError(
                f"NaNGuard({self.action!r}): the action is unknown{nearest(self.action, ACTIONS)} "
                f"Known: {', '.join(ACTIONS)}."
            )
        if not self.limit >= 0:
            raise ArgumentError(f"NaNGuard(limit={self.limit}): set a number of updates of 0 or more.")

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.skipped = self._in_a_row = 0

    def on_pre_optimizer_step(self, run: Run, control: TrainerControl, grad_norm: Any, loss: Any) -> None:
        self._skipped_before = run.state.steps_skipped if grad_norm is None else None
        if grad_norm is not None:
            what = self._check(run, grad_norm, loss, run.state.global_step + 1)
            if what:
                control.request("skip_update", what)
                self._stop_if_requested(control, what)

    def on_step_end(self, run: Run, control: TrainerControl, loss: Any) -> None:
        if self._skipped_before is not None:
            applied = run.state.steps_skipped == self._skipped_before
            self._stop_if_requested(control, self._check(run, run.grad_norm, loss, run.state.global_step, applied))

    def _check(self, run: Run, norm: Any, loss: Any, step: int, applied: bool = False) -> str:
        """Return a text about a gradient norm that is not finite; an empty text if the norm is finite.

        With a loss scaler, return an empty text and raise no error, because the scaler handles overflows.

        Args:
            run: the run.
            norm: the gradient norm. None: the norm is unknown, and the result is an empty text.
            loss: the loss of the step.
            step: the number of the step.
            applied: whether the optimizer has already updated the weights in this step.

        Raises:
            NonFiniteError: if the norm is not finite, and one of these conditions is true: the attribute `action` is
                `raise`; more than `limit` consecutive steps have such a norm; `applied` is True; or a callback updates
                the weights in backward.
        """
        if norm is None or bool(torch.isfinite(torch.as_tensor(norm))) or run.seams.scaler is not None:
            self._in_a_row = 0
            return ""
        self._in_a_row += 1
        applied = applied or provides(run.bus.subscribers.values(), Capability.UPDATES_IN_BACKWARD)
        what = f"the gradient norm is {float(norm)} and the loss {float(loss)} in step {step}"
        if applied or self.action == "raise" or self._in_a_row > self.limit:
            result = "The weights were updated with these gradients" if applied else "The weights were not updated"
            raise NonFiniteError(
                f"NaNGuard: {what}. {result}. Inspect the batch in a handler of on_loss, lower the learning rate or "
                "`max_grad_norm`, or skip such steps with NaNGuard('skip')."
            )
        self.skipped += 1
        logger.warning("NaNGuard: %s. The update is skipped.", what)
        return what

    def _stop_if_requested(self, control: TrainerControl, what: str) -> None:
        if what and self.action == "stop":
            control.request("training_stop", what)

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self._in_a_row = state["skipped"], state["in_a_row"]
