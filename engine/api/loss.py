"""The Trainer's methods for the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..loss.objective import Objective
from .base import TrainerBase


class LossMethods(TrainerBase):
    """Methods that compute the loss of a batch and count the items that it is averaged over."""

    criterion: Callable[[Any, Any], torch.Tensor] | None
    compute_loss_func: Callable[..., torch.Tensor] | None
    objective: Objective
    """Computes the loss of the model."""
    loss_takes_items = True
    """Whether `compute_loss` takes `num_items_in_batch`. An override without that parameter cannot divide by it."""
    loss_is_scaled_for_ga: bool | None = None
    """Whether the loss is already divided by the batches of its step; None to decide by how it is computed."""
    _objective_settings: Mapping[str, Any] = {}
    """Attributes of the objective that a subclass set. Models that `model_init` makes later get them too."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch, or `(loss, outputs)`. Override it for a loss of your own.

        Args:
            model: the model, wrapped or not.
            inputs: the batch: a dict, a tuple or a tensor.
            return_outputs: also return the outputs of the model.
            num_items_in_batch: the label items of the whole step, a scalar tensor; None for a mean over the batch.
        """
        loss, outputs = self.objective(model, inputs, num_items_in_batch)
        if num_items_in_batch is not None and self._averages_items:
            loss = loss * self.run.ranks.world_size  # DDP's average over ranks divides by it again
        self.run.step.outputs = outputs
        return (loss, outputs) if return_outputs else loss

    def count_items(self, batches: list[Any]) -> Any:
        """Return the label items of a step, a scalar tensor; None if the loss does not use them.

        With `average_tokens_across_devices` it is the sum over all ranks. Override it to count otherwise.

        Args:
            batches: all batches of the step on this rank.
        """
        items = self.objective.count_items(batches) if self.loss_takes_items else None
        return self.run.ranks.sum(items) if items is not None and self._averages_items else items

    @property
    def _averages_items(self) -> bool:
        return self.args.average_tokens_across_devices and not self.run.ranks.single_process

    @property
    def label_names(self) -> list[str]:
        """The names of labels in a batch. It may be set."""
        return self.objective.label_names

    @label_names.setter
    def label_names(self, names: list[str]) -> None:
        self._set_objective(label_names=list(names))

    @property
    def model_accepts_loss_kwargs(self) -> bool:
        """Whether the model takes `num_items_in_batch` and divides its loss by it. It may be set."""
        return self.objective.takes_item_count

    @model_accepts_loss_kwargs.setter
    def model_accepts_loss_kwargs(self, accepts: bool) -> None:
        self._set_objective(takes_item_count=bool(accepts))

    def _set_objective(self, **settings: Any) -> None:
        """Set attributes of the objective, and of later objectives for models that `model_init` makes."""
        self._objective_settings = {**self._objective_settings, **settings}
        if "objective" in vars(self):
            self.objective.set(**settings)

    def _build_objective(self, model: nn.Module) -> Objective:
        """Return the objective of a model."""
        objective = Objective(
            model,
            criterion=self.criterion,
            compute_loss_func=self.compute_loss_func,
            label_smoothing=self.args.label_smoothing_factor,
            label_names=self.args.label_names,
        )
        objective.set(**self._objective_settings)
        return objective

    def _loss_is_scaled(self, num_items_in_batch: Any) -> bool:
        """Return whether the loss of a batch is already divided by the batches of its step."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        counted = self.objective.takes_item_count and num_items_in_batch is not None
        return counted or self.compute_loss_func is not None
