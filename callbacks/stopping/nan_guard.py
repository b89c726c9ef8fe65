"""Refuse to update the weights with gradients that are no numbers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, NonFiniteError, nearest

logger = logging.getLogger(__name__)

ACTIONS = ("raise", "skip", "stop")


@dataclass
class NaNGuard(Callback):
    """Looks at the norm of all gradients before each update: one NaN or infinity anywhere makes it so too.

    The weights are never touched by such a step, and it is never hidden: the loss is logged as it is. With a loss
    scaler (fp16) an overflow is the scaler's to handle, and is left to it. Where the norm is known only after the
    update, as with the stages 1 to 3 of DeepSpeed, which leaves such an update out, it looks then.
    """

    action: Literal["raise", "skip", "stop"] = "raise"
    """What to do: `raise` an error, `skip` the update and go on, or `stop` training in good order."""
    limit: int = 10
    """Updates in a row that may be skipped before it raises after all."""
    skipped: int = field(default=0, init=False)
    """Updates of this run skipped so far."""
    _in_a_row: int = field(default=0, init=False, repr=False, compare=False)
    _skipped_before: int | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ArgumentError(
                f"NaNGuard(action={self.action!r}){nearest(self.action, ACTIONS)} It is one of: {', '.join(ACTIONS)}."
            )

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.skipped = self._in_a_row = 0

    def on_pre_optimizer_step(self, run: Run, control: TrainerControl, grad_norm: Any, loss: Any) -> None:
        self._skipped_before = run.state.steps_skipped if grad_norm is None else None
        if grad_norm is not None:
            what = self._judge(run, grad_norm, loss, run.state.global_step + 1)
            if what:
                control.request("skip_update", what)
                self._stop_if_wanted(control, what)

    def on_step_end(self, run: Run, control: TrainerControl, loss: Any) -> None:
        if self._skipped_before is not None:
            applied = run.state.steps_skipped == self._skipped_before
            self._stop_if_wanted(control, self._judge(run, run.grad_norm, loss, run.state.global_step, applied))

    def _judge(self, run: Run, norm: Any, loss: Any, step: int, applied: bool = False) -> str:
        """Return what is wrong with a step, empty if nothing is; `applied` says that the weights were updated."""
        if norm is None or bool(torch.isfinite(torch.as_tensor(norm))) or run.seams.scaler is not None:
            self._in_a_row = 0
            return ""
        self._in_a_row += 1
        what = f"the gradient norm is {float(norm)} and the loss {float(loss)} in step {step}"
        if applied or self.action == "raise" or self._in_a_row > self.limit:
            ends = "and the weights were updated with them" if applied else "so the weights were not updated"
            raise NonFiniteError(
                f"NaNGuard: {what}, {ends}. Look at the batch (a handler of on_loss has it), "
                "lower the learning rate, or clip lower; NaNGuard('skip') leaves such steps out."
            )
        self.skipped += 1
        logger.warning("NaNGuard: %s; the update is skipped.", what)
        return what

    def _stop_if_wanted(self, control: TrainerControl, what: str) -> None:
        if what and self.action == "stop":
            control.request("training_stop", what)

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self._in_a_row = state["skipped"], state["in_a_row"]
