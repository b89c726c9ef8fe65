"""The methods of the accelerator that compute and change gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.errors import ArgumentError
from ..checkpoint.format.sharded import is_split
from ..run import Run
from ..seams import clip_gradients
from ..stepper import Stepper


class GradientMethods:
    """Methods of `Accelerator` for training steps: backward, clipping, and averaging over the ranks."""

    run: Run
    stepper: Stepper | None

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Announce `on_loss`, then backpropagate the loss of a batch. With float16, the loss is scaled.

        As in transformers, this method does not divide the loss by the number of batches of the step. The method
        `training_step` of the Trainer divides the loss.

        Args:
            loss: a tensor with one element.
            **options: options of `torch.Tensor.backward`, such as `retain_graph`.

        Raises:
            ArgumentError: if no training is in progress.
        """
        self._during_training("backward").backward(loss, **options)

    @property
    def sync_gradients(self) -> bool:
        """Whether the current batch is the last of its step.

        Raises:
            ArgumentError: if no training is in progress.
        """
        return self._during_training("sync_gradients").completing

    def _during_training(self, what: str) -> Stepper:
        if self.stepper is None or not self._in_training:
            raise ArgumentError(
                f"`accelerator.{what}` works only during a training step, but no training is in progress. Override "
                "`training_step` and call it there."
            )
        return self.stepper

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Enter a context that does nothing, for training steps that call accelerate's `accumulate`.

        The Trainer itself averages the gradients over the ranks, only in the last batch of a step.

        Args:
            *models: not used.
        """
        yield

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Enter a context in which backward does not average gradients over the ranks.

        The context does nothing in two cases: the model has no wrapper such as DDP or FSDP, or DeepSpeed uses ZeRO
        stage 2 or 3.
        """
        wrapper: Any = model
        if hasattr(wrapper, "set_requires_gradient_sync"):  # FSDP
            completing = self.stepper is None or not self._in_training or self.stepper.completing
            wrapper.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                wrapper.set_requires_gradient_sync(completing)
            return
        shards_gradients = getattr(wrapper, "zero_optimization_partition_gradients", lambda: False)  # DeepSpeed
        with wrapper.no_sync() if hasattr(wrapper, "no_sync") and not shards_gradients() else nullcontext():
            yield

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Remove the loss scale from the gradients of the step.

        Without a loss scaler, or outside of training, do nothing. `clip_grad_norm_` and `clip_grad_value_` call this
        method.

        Args:
            optimizer: the optimizer of the gradients, or a list of optimizers; by default the optimizer of the run.

        Raises:
            ArgumentError: if the run has a loss scaler, and the current batch is not the last of its step.
        """
        scaler = self.run.seams.scaler
        if scaler is None or self.stepper is None or not self._in_training:
            return
        self._require_last("unscale_gradients")
        given = (
            optimizer
            if isinstance(optimizer, (list, tuple))
            else [self.run.optimizer if optimizer is None else optimizer]
        )
        for each in given:
            if each is self.run.optimizer:
                self.stepper.unscale(each)
            else:
                scaler.unscale_(each)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Clip gradients to a norm. Return the norm before clipping.

        The Trainer itself clips to `max_grad_norm` in each step, without this method. With `fp16`, the method first
        removes the loss scale. If a callback fills the seam `clip`, as `FSDP` does, and `norm_type` is 2, the method
        calls this seam.

        Args:
            parameters: a parameter, or an iterable of parameters.
            max_norm: the largest norm.
            norm_type: the type of the norm.

        Returns:
            The norm before clipping, a scalar tensor. With DeepSpeed, None if DeepSpeed computes the norm later.

        Raises:
            ArgumentError: if the current batch is not the last of its step, and the run uses `fp16` or has a callback
                that fills the seam `clip`. Also if this callback does not support `norm_type`, or if DeepSpeed clips
                and `max_norm` differs from `max_grad_norm`.
        """
        given: list[Any] = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
        self.unscale_gradients()
        clip = self.run.seams.clip
        if not self._in_training or clip is clip_gradients:
            return nn.utils.clip_grad_norm_(given, max_norm, norm_type)
        self._require_last("clip_grad_norm_")
        if norm_type != 2:
            return self._clip_to_other_norm(given, max_norm, norm_type)
        of_run = self.run.args.max_grad_norm or 0.0
        if max_norm != of_run and provides(self.run.bus.subscribers.values(), Capability.DEEPSPEED):
            raise ArgumentError(
                f"DeepSpeed clips the gradients itself, to `max_grad_norm={of_run}`, and `accelerator.clip_grad_norm_` "
                f"got {max_norm}. Set `max_grad_norm={max_norm}` in the arguments."
            )
        return clip(self.run.optimizer, given, max_norm)

    def _clip_to_other_norm(self, parameters: list[nn.Parameter], max_norm: float, norm_type: float) -> torch.Tensor:
        if not all(is_split(weight.grad) for weight in parameters if weight.grad is not None):
            raise ArgumentError(
                f"`accelerator.clip_grad_norm_` got norm_type={norm_type}, but a callback of this run clips the "
                "gradients, and only to a norm of type 2. Leave `norm_type` out."
            )
        norm: Any = nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        total: torch.Tensor = norm.full_tensor() if is_split(norm) else norm
        return total

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip each element of gradients to the range from `-clip_value` to `clip_value`.

        With `fp16`, the method first removes the loss scale.

        Raises:
            ArgumentError: if a callback clips the gradients, such as `FSDP`. With `fp16`, also if the current batch is
                not the last of its step.
        """
        if self._in_training and self.run.seams.clip is not clip_gradients:
            raise ArgumentError(
                "`accelerator.clip_grad_value_` does not work in this run, because a callback clips the gradients. Use "
                "`accelerator.clip_grad_norm_`."
            )
        self.unscale_gradients()
        nn.utils.clip_grad_value_(parameters, clip_value)

    def _require_last(self, what: str) -> None:
        if self.stepper is not None and not self.stepper.completing:
            raise ArgumentError(
                f"`accelerator.{what}` changes gradients to which further batches of the step add theirs. Call it only "
                "if `accelerator.sync_gradients` is True."
            )

    @property
    def _in_training(self) -> bool:
        return self.stepper is not None and self.run.mode == "train"
