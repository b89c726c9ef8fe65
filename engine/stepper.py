"""The Stepper: the arithmetic of one optimizer step. A collaborator of the loop, with seams that callbacks fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ..events.activity import BACKWARD, FORWARD, IDLE, UPDATE
from .distributed.consensus import Agree, agree_single_process
from .optim.schedules import needs_metric

if TYPE_CHECKING:
    from .data.feed import Window
    from .run import Run


class TrainingStep(Protocol):
    """Forward and backward of one batch; returns its loss, detached and divided by the batches of its step."""

    def __call__(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor: ...


class Stepper:
    """Turns a window of batches into one optimizer step, announcing what happens inside it."""

    def __init__(
        self,
        run: Run,
        training_step: TrainingStep,
        count_items: Callable[[list[Any]], Any],
        *,
        max_grad_norm: float,
        filter_nonfinite: bool,
        agree: Agree = agree_single_process,
    ) -> None:
        """Prepare for the run's model and optimizer, which exist.

        Args:
            run: the record that is read and written.
            training_step: forward and backward of one batch.
            count_items: counts what the losses of a step are averaged over, where the model or loss wants to know.
            max_grad_norm: gradients are clipped to this norm; 0 only measures it.
            filter_nonfinite: keep losses that are not finite out of the logged average.
            agree: makes the processes agree on whether the update is left out; by default, they cannot but.
        """
        self.run = run
        self.activity = run.activity
        self.training_step = training_step
        self.count_items = count_items
        self.max_grad_norm = max_grad_norm
        self.filter_nonfinite = filter_nonfinite
        self.agree = agree
        self.parameters = list(run.unwrapped_model.parameters())
        self.keeps_outputs = run.bus.asked_for("outputs")
        # A schedule that reads a metric moves when there is one, after an evaluation.
        self.moves_schedule = run.lr_scheduler is not None and not needs_metric(run.lr_scheduler)
        self.accumulating = 1
        """Batches in the step being made: what a loss that is a mean over its batch is divided by."""
        self.completing = True
        """Whether the batch in work is the last of its step."""

    def step(self, window: Window) -> None:
        """Make one step: forward and backward of each batch, then the update."""
        run, announce, synchronise = self.run, self.run.bus.announce, self.run.seams.synchronise
        activity = self.activity
        activity.name = FORWARD
        self.accumulating = window.batches
        items = self.count_items(window.items)
        model = run.model_wrapped
        for index, batch in enumerate(window.items):
            run.batch = batch
            announce("on_batch")
            self.completing = last = index == window.batches - 1
            with synchronise(model, last):
                loss = self.training_step(model, run.batch, items)
            run.loss = loss
            if not self.keeps_outputs:
                run.outputs = None
            self._sum(loss)
            if not last:
                announce("on_substep_end")
        activity.name = UPDATE
        self._update(run, run.optimizer)
        activity.name = IDLE

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Announce the loss while it is live, and backpropagate it, with options for `torch.Tensor.backward`."""
        run = self.run
        run.loss = loss
        run.bus.announce("on_loss")
        scaler = run.seams.scaler
        self.activity.name = BACKWARD
        run.seams.backward(run.loss if scaler is None else scaler.scale(run.loss), **options)
        self.activity.name = FORWARD

    def _sum(self, loss: torch.Tensor) -> None:
        if self.filter_nonfinite and not torch.isfinite(loss):
            for losses in self.run.losses.windows:
                losses.skip(self.run.state.global_step)
        else:
            self.run.losses.add(loss)

    def _update(self, run: Run, optimizer: Optimizer) -> None:
        announce, seams, control = run.bus.announce, run.seams, run.control
        if seams.scaler is not None:
            seams.scaler.unscale_(optimizer)
        announce("on_gradients")
        run.grad_norm = seams.clip(optimizer, self.parameters, self.max_grad_norm)
        announce("on_pre_optimizer_step")
        self.agree(control)
        applied = not control.take("skip_update") and self._apply(optimizer)
        if applied:
            announce("on_optimizer_step")
        else:
            run.state.steps_skipped += 1
        run.learning_rate = run.current_learning_rate()
        if applied and self.moves_schedule:
            run.lr_scheduler.step()
        seams.zero_grad(self.parameters)

    def _apply(self, optimizer: Optimizer) -> bool:
        """Step the optimizer; return whether the weights moved."""
        scaler = self.run.seams.scaler
        if scaler is None:
            return self.run.seams.step(optimizer)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        # The scale only falls when gradients overflowed, and then the scaler left the weights alone.
        return scaler.get_scale() >= before
