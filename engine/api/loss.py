"""The Trainer's methods for the loss."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...events.errors import ArgumentError
from ..loss.label_smoothing import LabelSmoother, OwnSmoother, smoother_for, smoothing_refusal
from ..loss.loss_module import LossModule
from ..loss.objective import Objective, logits_of
from ..loss.reachable import names_in
from .moments import MomentMethods
from .overrides import is_overridden

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OutputSmoother:
    """The object `trainer.label_smoother`, which computes a loss with label smoothing.

    The object can be called like a `LabelSmoother` of transformers.
    """

    smoother: LabelSmoother
    """The function that computes the loss from logits."""

    @property
    def epsilon(self) -> float:
        """The probability that label smoothing spreads evenly over all classes."""
        return self.smoother.epsilon

    @property
    def ignore_index(self) -> int:
        """The label that the loss ignores: -100 by default."""
        return self.smoother.ignored

    def __call__(
        self, model_output: Any, labels: Any, shift_labels: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return the smoothed loss, a scalar tensor.

        Args:
            model_output: the outputs of the model, or a dict with `logits`.
            labels: the labels; a dict with `labels` is accepted.
            shift_labels: compare the output at each position with the label at the next position.
            num_items_in_batch: the number by which the sum of the losses is divided; None for the mean.
        """
        labels = labels["labels"] if isinstance(labels, Mapping) else labels
        return self.smoother(logits_of(model_output), labels, shift=shift_labels, items=num_items_in_batch)


class LossMethods(MomentMethods):
    """Methods that compute the loss of a batch, and count the labels by which the loss is divided."""

    criterion: Callable[[Any, Any], torch.Tensor] | None
    compute_loss_func: Callable[..., torch.Tensor] | None
    objective: Objective
    """The object that computes the loss of the model."""
    loss_takes_items = True
    """Whether `compute_loss` takes `num_items_in_batch`, the number of labels by which the loss is divided."""
    loss_is_scaled_for_ga: bool | None = None
    """Whether the loss is already divided by the number of batches of its step. None: the Trainer finds this out."""
    _collected: tuple[Any, Any] = (None, None)
    """The return value of an overridden `get_batch_samples`: the batches of the step, and `num_items_in_batch`."""
    _counting = False
    """Whether `_get_num_items_in_batch` runs now. While it runs, `count_items` must not call it again."""
    _told_own_loss = False
    """Whether `_tell_own_loss` has already checked an overridden `compute_loss`."""
    _objective_settings: Mapping[str, Any] = {}
    """Attributes that the program set on the objective. Objectives of models that `model_init` makes later get the same
    attributes."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch, or `(loss, outputs)`. Override this method for a loss of your own.

        Args:
            model: the model, wrapped or not.
            inputs: the batch: a dict, a tuple or a tensor.
            return_outputs: also return the outputs of the model.
            num_items_in_batch: the number of labels of the whole step that are not -100, a scalar tensor. The loss is
                divided by this number. None: the loss is a mean over the batch.
        """
        loss, outputs = self.objective(model, inputs, num_items_in_batch)
        if num_items_in_batch is not None and self._averages_items and self.objective.divides_by_items:
            loss = loss * self.run.ranks.world_size  # because DDP's average over the ranks divides by it
        self.run.step.outputs = outputs
        return (loss, outputs) if return_outputs else loss

    def count_items(self, batches: list[Any]) -> Any:
        """Return `num_items_in_batch`: the number of labels of a step that are not -100, a scalar tensor.

        Return None if the loss is not divided by this number. With `average_tokens_across_devices`, the number is the
        sum over all ranks. Override this method to count in another way.

        Args:
            batches: all batches of the step on this rank.
        """
        if self._overridden and not self._counting:
            collected, items = self._collected
            return items if batches is collected else self._get_num_items_in_batch(batches, self.args.device)
        items = self.objective.count_items(batches) if self.loss_takes_items else None
        return self.run.ranks.sum(items) if items is not None and self._averages_items else items

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Return the number of labels over which the loss of a step is averaged, as `count_items` does.

        Return None if the loss of each batch is the mean over this batch.
        """
        before, self._counting = self._counting, True
        try:
            return self.count_items(batch_samples)
        finally:
            self._counting = before

    def _collect(self, batches: Iterator[Any], count: int) -> list[Any]:
        """Read up to `count` batches with the overridden `get_batch_samples`. Return the batches.

        Also store the returned `num_items_in_batch`. `count_items` returns this value for the same batches.
        """
        self._collected = self.get_batch_samples(batches, count, self.args.device)
        return self._collected[0]

    @property
    def _has_loss_context(self) -> bool:
        return not self._overridden.isdisjoint(("compute_loss_context_manager", "autocast_smart_context_manager"))

    @property
    def _averages_items(self) -> bool:
        return self.args.average_tokens_across_devices and not self.run.ranks.single_process

    @property
    def label_names(self) -> list[str]:
        """The names of labels in a batch. A program may set this attribute."""
        return self.objective.label_names

    @label_names.setter
    def label_names(self, names: list[str]) -> None:
        given: object = names
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ArgumentError(f"`trainer.label_names` cannot be {names!r}. Set a list, such as ['labels'].")
        self._set_objective(label_names=list(names))

    @property
    def model_accepts_loss_kwargs(self) -> bool:
        """Whether the model takes `num_items_in_batch` and divides its loss by this number.

        A program may set this attribute.
        """
        return self.objective.takes_item_count

    @model_accepts_loss_kwargs.setter
    def model_accepts_loss_kwargs(self, accepts: bool) -> None:
        self._set_objective(takes_item_count=bool(accepts))

    @property
    def can_return_loss(self) -> bool:
        """Whether the model returns a loss for a batch without labels. A program may set this attribute.

        Default: whether `forward` has a parameter `return_loss` with the default True.
        """
        return self.objective.returns_loss

    @can_return_loss.setter
    def can_return_loss(self, can: bool) -> None:
        self._set_objective(returns_loss=bool(can))

    @property
    def label_smoother(self) -> Any:
        """The object that computes the smoothed loss, called with outputs and labels; None without label smoothing.

        A program may set this attribute. The value then replaces `args.label_smoothing_factor`.
        """
        smoother = self.objective.smoother
        if isinstance(smoother, OwnSmoother):
            return smoother.function
        return None if smoother is None else OutputSmoother(smoother)

    @label_smoother.setter
    def label_smoother(self, smoother: Callable[..., torch.Tensor] | None) -> None:
        if not (smoother is None or callable(smoother)):
            raise ArgumentError(
                f"`trainer.label_smoother` cannot be {smoother!r}. Set a function "
                "`(outputs, labels, shift_labels=False, num_items_in_batch=None) -> loss`, or None."
            )
        self._set_objective(smoother=None if smoother is None else OwnSmoother(smoother))

    @property
    def _loss_shifts_labels(self) -> bool:
        """Whether `num_items_in_batch` leaves out the first label of each row. A program may set this attribute."""
        return self.objective.shifts_labels

    @_loss_shifts_labels.setter
    def _loss_shifts_labels(self, shifts: bool) -> None:
        self._set_objective(shifts_labels=bool(shifts))

    def _set_objective(self, **settings: Any) -> None:
        """Set attributes of `self.objective`, the object that computes the loss of the model.

        The objectives of models that `model_init` makes later get the same values.
        """
        self._objective_settings = {**self._objective_settings, **settings}
        if "objective" in vars(self):
            self.objective.set(**settings)

    def _follow_loss(self) -> None:
        """Apply a loss function or label smoothing that the program set after construction.

        Raises:
            ArgumentError: if label smoothing and a loss function are both set.
        """
        objective, args = self.objective, self.args
        given = "criterion" if self.criterion is not None else "compute_loss_func"
        own = "smoother" in self._objective_settings
        if args.label_smoothing_factor and not own and getattr(self, given) is not None:
            raise ArgumentError(smoothing_refusal(args.label_smoothing_factor, given))
        if not own and getattr(objective.smoother, "epsilon", 0.0) != args.label_smoothing_factor:
            objective.smoother = smoother_for(self.run.model, args.label_smoothing_factor)
            objective.use(self.criterion, self.compute_loss_func)
        if self.criterion is not objective.criterion or self.compute_loss_func is not objective.compute_loss_func:
            for owner_id, attached in self.bus.subscribers.items():
                if isinstance(attached, LossModule):
                    self.bus.detach(owner_id)
            loss_module = LossModule.around(self.criterion or self.compute_loss_func)
            if loss_module is not None:
                self.bus.attach(loss_module)
            objective.use(self.criterion, self.compute_loss_func)
        self._tell_own_loss()

    def _set_late_loss(self, name: str, value: Any) -> None:
        """Set `criterion` or `compute_loss_func` while the run trains or evaluates. The next batch uses the value.

        Raises:
            ArgumentError: if the old or the new value has parameters, because the optimizer exists already.
        """
        if LossModule.around(value) or LossModule.around(getattr(self, name)):
            raise ArgumentError(
                f"`trainer.{name}` cannot be replaced during {self.run.mode}(), because a loss with parameters is "
                f"trained with the model. Set it before {self.run.mode}()."
            )
        vars(self)[name] = value
        self._follow_loss()

    def _tell_own_loss(self) -> None:
        """Warn once if an overridden `compute_loss` seems to ignore `label_smoothing_factor`.

        The warning appears if the override uses neither `super().compute_loss` nor `label_smoother`.
        """
        if self._told_own_loss or not self.args.label_smoothing_factor or not is_overridden(self, "compute_loss"):
            return
        self._told_own_loss = True
        code = getattr(inspect.unwrap(self.compute_loss), "__code__", None)
        if code is not None and {"compute_loss", "label_smoother"}.isdisjoint(names_in(code)):
            logger.warning(
                "`label_smoothing_factor=%s` has no effect: `compute_loss` is overridden. Smooth there, with "
                "`self.label_smoother(outputs, labels)`, or leave it out.",
                self.args.label_smoothing_factor,
            )

    def _build_objective(self, model: nn.Module) -> Objective:
        """Return the object that computes the loss of a model."""
        smoothing = self.args.label_smoothing_factor
        if smoothing and getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
            warnings.warn(
                "Label smoothing is not compatible with multi-label classification, so `label_smoothing_factor` has no "
                "effect on this model. Remove it.",
                UserWarning,
                stacklevel=2,
            )
            smoothing = 0.0
        objective = Objective(
            model,
            criterion=self.criterion,
            compute_loss_func=self.compute_loss_func,
            label_smoothing=smoothing,
            label_names=self.args.label_names,
        )
        objective.set(**self._objective_settings)
        return objective

    def _loss_is_scaled(self, num_items_in_batch: Any) -> bool:
        """Return whether the loss is already averaged over its whole step.

        If the result is False, `training_step` divides the loss by the number of batches of the step.

        Args:
            num_items_in_batch: the number of labels by which the loss was divided; None for a mean over the batch.
        """
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        # Without a count, a loss function can only return a mean over its batch.
        return self.objective.divides_by_items and num_items_in_batch is not None
