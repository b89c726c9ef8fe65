"""Store the values that are needed to repeat the current step, and detect a step that fails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from ...engine.checkpoint.rng_state import QuickStates
from ...engine.run import Run
from ...events.stages import Stage, order

USUAL = 50
"""The largest number of earlier steps in a median. The median is the usual value."""
FEWEST = 10
"""The number of earlier steps that a run needs before a step can be a spike."""
TRIED = 20
"""The number of steps after which an automatic capture compares its own time with the time of the steps."""
SHARE = 0.01
"""The largest share of the time of the steps that an automatic capture takes."""

Failed = Callable[[Run, str, dict[str, Any]], None]
"""The function to call for a failed step, with the run, the reason, and the losses and gradient norm of the step."""


class StepCapture:
    """Stores the batches, RNG states and buffers of a step, and calls the function `failed` if the step fails.

    A `Capsule` creates this object and attaches it to the bus.
    """

    on_error = "warn"

    def __init__(self, spike: float, automatic: bool, failed: Failed, end: Callable[[], None]) -> None:
        """Create the capture of a run, before the first step.

        Args:
            spike: a step fails if its loss or its gradient norm is more than this many times the median of the last 50
                steps.
            automatic: if True, `spike` applies only to losses and gradient norms above the median of the first 10
                steps. The capture also calls `end` if it takes more than 1 % of the time of the first 20 steps.
            failed: the function to call after the backward of a step that fails. If consecutive steps fail, the capture
                calls the function only for the first of these steps.
            end: the function that detaches this object. Not called if `automatic` is False.
        """
        self.spike, self.automatic, self.failed, self.end = spike, automatic, failed, end
        self.noted: list[tuple[Any, tuple[Any, ...]]] = []
        """The batches of the step so far, each with the RNG states before the batch."""
        self.buffers: dict[str, torch.Tensor] = {}
        """The buffers of the model before the step."""
        self._losses: list[torch.Tensor] = []
        self._usual: list[tuple[float, float]] = []
        self._medians: list[float] = []
        self._first: list[float] = []
        self._states = QuickStates()
        self._failing = False
        self._trial: list[tuple[float, float]] = []
        """The seconds of this capture in each step of the trial, and the time at the end of the step."""
        self._spent = 0.0
        """The seconds of this capture in the current step, before the backward."""

    def states(self) -> list[dict[str, Any]]:
        """Return the RNG states before each batch of the current step, as one dict per batch."""
        return [QuickStates.named(states) for _, states in self.noted]

    def forget(self) -> None:
        """Release the stored batches, losses and buffers of the current step."""
        self.noted, self._losses, self.buffers = [], [], {}

    @order(Stage.RELEASE)
    def on_batch(self, run: Run, batch: Any) -> None:
        began = time.perf_counter()
        if run.step.batch_index == 0:
            self.forget()
            # The forward changes buffers, such as the running means of BatchNorm.
            self.buffers = {name: buffer.detach().clone() for name, buffer in run.unwrapped_model.named_buffers()}
            self._spent = 0.0
        self.noted.append((batch, self._states.read()))
        self._spent += time.perf_counter() - began

    @order(Stage.PREPARE)
    def on_loss(self, loss: torch.Tensor) -> None:
        # A copy, because the next batch of a compiled model may write its loss into the same memory.
        self._losses.append(loss.detach().clone())

    @order(Stage.PREPARE)
    def on_pre_optimizer_step(self, run: Run, grad_norm: Any) -> None:
        began = time.perf_counter()
        losses, norm = numbers_of(self._losses), float(grad_norm) if grad_norm is not None else 0.0
        loss = sum(losses) / len(losses) if losses else 0.0
        reason = self.problem(loss, norm, scaled=run.seams.scaler is not None)
        if reason and not self._failing:  # NaN weights make all later steps fail too
            self.failed(run, reason, {"losses": losses, "grad_norm": norm})
        self._failing = bool(reason)
        if not reason:
            self.note_usual(loss, norm)
        self.forget()
        if self.automatic and len(self._trial) < TRIED and not reason:
            self._try(began)

    def problem(self, loss: float, norm: float, scaled: bool) -> str:
        """Return why a step failed; an empty text if the step did not fail.

        With a gradient scaler (`scaled=True`), a step with a NaN or infinite gradient norm does not fail: the scaler
        skips the update.
        """
        if not math.isfinite(loss):
            return "the loss is not finite"
        if not (scaled or math.isfinite(norm)):
            return "the gradient norm is not finite"
        leasts = self._first if self.automatic else [0.0, 0.0]
        for name, number, usual, least in zip(("loss", "gradient norm"), (loss, norm), self._medians, leasts):
            if least < number < math.inf and 0 < self.spike * usual < number:
                return f"the {name} is {number:.3g}, usually {usual:.3g}"
        return ""

    def note_usual(self, loss: float, norm: float) -> None:
        """Store the loss and gradient norm of a step that did not fail.

        Every tenth call updates the usual values: the medians of the last 50 losses and gradient norms.
        """
        self._usual.append((loss, norm))
        if len(self._usual) % FEWEST == 0:
            self._usual = self._usual[-USUAL:]
            self._medians = [median(numbers) for numbers in zip(*self._usual)]
            self._first = self._first or self._medians

    def _try(self, began: float) -> None:
        """Store the time that the capture took in the current step. After 20 steps, call `end` if the capture is slow.

        The capture is slow if the median of the stored times is above 1 % of the median step time.

        Args:
            began: the start of `on_pre_optimizer_step`, from `time.perf_counter`.
        """
        now = time.perf_counter()
        self._trial.append((self._spent + now - began, now))
        if len(self._trial) == TRIED:
            # Medians, because another program or an evaluation can make a few steps long.
            of_capture = median(spent for spent, _ in self._trial)
            of_step = median(later - earlier for (_, earlier), (_, later) in pairwise(self._trial))
            if of_capture > SHARE * of_step:
                self.end()


def numbers_of(losses: list[torch.Tensor]) -> list[float]:
    """Return the losses of a step as numbers. The function waits for the device once."""
    if not losses:
        return []
    single = len(losses) == 1 and losses[0].dim() == 0
    return [float(losses[0])] if single else torch.stack([loss.float().mean() for loss in losses]).tolist()
