"""The Stepper, which makes each optimizer step of a training. Callbacks change the step through seams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ..events.activity import BACKWARD, FORWARD, IDLE, UPDATE
from ..events.capabilities import Capability
from ..events.composition import provides
from ..events.errors import ArgumentError
from ..events.timeline import APPLY, CLIP, ENGINE, now
from .distributed.consensus import Agree, agree_single_process
from .loss.gradient_errors import check_replaced_loss
from .loss.loss_module import average_gradients
from .optim.parameter_watch import on_registration
from .optim.schedules import needs_metric, step_schedule

if TYPE_CHECKING:
    from .data.feed import Window
    from .run import Run


class TrainingStep(Protocol):
    """Forward and backward of one batch: `Trainer.training_step`, or the function that the seam `train_batch` returns.

    A call returns the detached loss, divided by the number of batches of the step.
    """

    def __call__(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor: ...


class Stepper:
    """Turns the batches of a step into one optimizer step and announces the events inside it."""

    def __init__(
        self,
        run: Run,
        training_step: TrainingStep,
        count_items: Callable[[list[Any]], Any],
        *,
        check_arguments: Callable[[], None],
        agree: Agree = agree_single_process,
        extra_parameters: Sequence[nn.Parameter] = (),
        learning_rate: Callable[[], float] | None = None,
        unclipped_parameters: Sequence[nn.Parameter] = (),
    ) -> None:
        """Create the stepper of a run. The model and the optimizer of the run already exist.

        Args:
            run: the run to train. The stepper writes the values of each step to `run.step`.
            training_step: forward and backward of one batch.
            count_items: a function that returns the item count of a step, or None if the loss does not use the item
                count.
            check_arguments: a function that raises an error or logs a warning if a handler changed an argument and the
                change has no effect on the step. Changes of `max_grad_norm` and `logging_nan_inf_filter` have effect.
            agree: makes the ranks agree on whether the update is skipped. The default is for a single process, and does
                nothing.
            extra_parameters: other parameters that the optimizer updates, such as parameters of a criterion.
            learning_rate: a function that returns the learning rate of the step, for logs. Default: the learning rate
                of the first parameter group.
            unclipped_parameters: the extra parameters that are neither clipped nor counted in the gradient norm.
        """
        self.run = run
        self.activity, self.marks = run.activity, run.bus.timeline.marks
        self.training_step = training_step
        self.count_items = count_items
        self.check_arguments = check_arguments
        self.agree = agree
        self.learning_rate = run.current_learning_rate if learning_rate is None else learning_rate
        self._extra, self._unclipped = extra_parameters, {id(parameter) for parameter in unclipped_parameters}
        self._collect()
        attached = run.bus.subscribers.values()
        self._follows = not any(provides(attached, each) for each in (Capability.SHARDS_MODEL, Capability.DEEPSPEED))
        # A wrapper such as DDP averages only the gradients of the model, so the stepper averages those of other
        # parameters.
        self._to_average = [] if run.ranks.single_process else list(extra_parameters)
        # A schedule that reads a metric does not step here. It steps after an evaluation.
        self.moves_schedule = run.lr_scheduler is not None and not needs_metric(run.lr_scheduler)
        self.accumulating = 1
        """The number of batches of the current step. A loss that is a mean over its batch is divided by this number."""
        self.completing = True
        """Whether the current batch is the last of its step."""
        self._scaled = self._unscaled = False
        """Whether the gradients of the current step were scaled, and whether the loss scale was removed from them."""

    def _collect(self) -> None:
        """List the parameters whose gradients the stepper clips, and the parameters whose gradients it clears."""
        self.parameters = [*self.run.unwrapped_model.parameters(), *self._extra]
        self.clipped = [parameter for parameter in self.parameters if id(parameter) not in self._unclipped]
        self._outdated = False

    def following_parameters(self) -> AbstractContextManager[None]:
        """Return a context manager for code that adds parameters to the model.

        The stepper then also clips and clears the gradients of these parameters. If a callback shards the
        model, or if DeepSpeed trains it, the context manager has no effect.
        """
        return on_registration(self._note_registration)

    def _note_registration(self) -> None:
        # Callbacks that shard the model register parts of it in each step, and clip the parameters that they create.
        self._outdated = self._follows

    def step(self, window: Window) -> None:
        """Make one optimizer step: run forward and backward of each batch in `window`, then update the weights."""
        run, announce, synchronise = self.run, self.run.bus.announce, self.run.seams.synchronise
        record, activity, marks = run.step, self.activity, self.marks
        self.check_arguments()
        named = run.bus.named  # read in each step, because a handler may be attached during the run
        activity.name = FORWARD
        self.accumulating = window.batches
        items = self.count_items(window.items)
        model = run.model_wrapped
        for index, batch in enumerate(window.items):
            record.batch, record.batch_index = batch, index
            announce("on_batch")
            self.completing = last = index == window.batches - 1
            marks += (FORWARD, now())
            with synchronise(model, last):
                loss = self.training_step(model, record.batch, items)
            record.loss = loss
            if "outputs" not in named:
                record.outputs = None
            self._sum(loss)
            if not last:
                announce("on_substep_end")
        if self._to_average:
            average_gradients(self._to_average, run.ranks)
        activity.name = UPDATE
        marks += (APPLY, now())
        self._update(run, run.optimizer)
        activity.name = IDLE
        marks += (ENGINE, now())

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Announce `on_loss`, then backpropagate the loss. `options` are passed to `torch.Tensor.backward`."""
        run, record = self.run, self.run.step
        record.loss = loss
        run.bus.announce("on_loss")
        if record.loss is not loss:
            check_replaced_loss(record.loss)
        scaler, marks = run.seams.scaler, self.marks
        if self._unscaled:
            raise ArgumentError(
                "Backward adds scaled gradients to gradients from which the loss scale was already removed. With "
                "`fp16`, call `accelerator.clip_grad_norm_` and `accelerator.unscale_gradients` after the last "
                "backward of a step, when `accelerator.sync_gradients` is True."
            )
        self.activity.name = BACKWARD
        marks += (BACKWARD, now())
        self._scaled = scaler is not None
        run.seams.backward(record.loss if scaler is None else scaler.scale(record.loss), **options)
        marks += (ENGINE, now())
        self.activity.name = FORWARD

    def unscale(self, optimizer: Optimizer) -> None:
        """Remove the loss scale from the gradients of the step, unless it is removed already.

        If there are no gradients, because all batches of the step were skipped, do nothing.
        """
        scaler = self.run.seams.scaler
        has_gradients = self._scaled or any(weight.grad is not None for weight in self.parameters)
        if scaler is not None and has_gradients and not self._unscaled:
            scaler.unscale_(optimizer)
            self._unscaled = True

    def _sum(self, loss: torch.Tensor) -> None:
        if self.run.args.logging_nan_inf_filter and not torch.isfinite(loss):
            for losses in self.run.losses.windows:
                losses.skip(self.run.state.global_step)
        else:
            self.run.losses.add(loss)

    def _update(self, run: Run, optimizer: Optimizer) -> None:
        announce, seams, control, marks = run.bus.announce, run.seams, run.control, self.marks
        if seams.scaler is not None:
            self.unscale(optimizer)
        announce("on_gradients")
        if self._outdated:
            self._collect()
        marks += (CLIP, now())
        run.step.grad_norm = seams.clip(optimizer, self.clipped, run.args.max_grad_norm or 0.0)
        marks += (APPLY, now())
        announce("on_pre_optimizer_step")
        self.agree(control)
        applied = self._skip() if control.take("skip_update") else self._apply(optimizer)
        if applied:
            announce("on_optimizer_step")
        else:
            run.state.steps_skipped += 1
        self._scaled = self._unscaled = False
        run.step.learning_rate = self.learning_rate()
        if applied and self.moves_schedule:
            step_schedule(run.lr_scheduler)
        seams.zero_grad(self.parameters)

    def _skip(self) -> bool:
        """Make no update, and return False. Prepare the scaler for the next step, and do not change its scale."""
        scaler = self.run.seams.scaler
        if scaler is not None and self._unscaled:
            scaler.update(scaler.get_scale())
        return False

    def _apply(self, optimizer: Optimizer) -> bool:
        """Step the optimizer. Return whether the weights changed."""
        scaler = self.run.seams.scaler
        if scaler is None:
            return self.run.seams.step(optimizer)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        # The scale falls only when gradients overflowed. The scaler then skipped the update.
        return scaler.get_scale() >= before
