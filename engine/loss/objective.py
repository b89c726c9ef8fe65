"""The objective: loss and outputs of a batch, with the model's own loss, a criterion or a loss function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ...events.errors import ModelError, closest
from ..data.batches import detach
from .item_counts import count_items, loss_shifts_labels, predicted_labels
from .label_smoothing import OwnSmoother, Smoother, is_causal, smoother_for
from .signature import ForwardSignature, described, label_names_of, user_model
from .target_errors import broadcasts

logger = logging.getLogger(__name__)

Criterion = Callable[[Any, Any], torch.Tensor]


class Objective:
    """Computes the loss of a model, and finds the labels in a batch.

    The loss comes from the first of these that is set: `compute_loss_func`, `criterion`, label smoothing, and else the
    model's own loss.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        criterion: Criterion | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        label_smoothing: float = 0.0,
        label_names: list[str] | None = None,
    ) -> None:
        """Set how the loss is computed.

        The constructor reads three things from the model: the parameters of `forward`, the names of the labels, and
        whether the model accepts `num_items_in_batch`.

        Args:
            model: the model. Without `criterion`, `compute_loss_func` and label smoothing, the model must return its
                loss under `loss` or as its first output.
            criterion: called as `criterion(logits, labels)`; returns the mean over the batch. Use it for models that
                return only logits.
            compute_loss_func: called as `compute_loss_func(outputs, labels, num_items_in_batch=...)`. The function must
                divide the loss by `num_items_in_batch`, the number of labels of the whole step that are not -100. If
                `num_items_in_batch` is None, the function must return a mean over the batch.
            label_smoothing: probability that is spread over all classes; 0 turns label smoothing off.
            label_names: names of the labels in a batch; None uses the names that `label_names_of` finds.
        """
        self.signature = ForwardSignature.of(model)
        self.smoother: Smoother | None = smoother_for(model, label_smoothing)
        # Models of transformers declare it. For other models, `**kwargs` means that they accept the count.
        self.takes_item_count = bool(
            getattr(user_model(model), "accepts_loss_kwargs", self.signature.accepts_any_keyword)
        )
        self.shifts_labels = loss_shifts_labels(model)
        self.smooths_shifted = is_causal(model)
        self.label_names = label_names_of(model) if label_names is None else label_names
        self._names_labels = label_names is None
        self.dropped_columns: tuple[str, ...] = ()
        """Columns of the dataset that `forward` does not take, for errors. The method that builds loaders sets them."""
        self._told_unsmoothed = False
        self.returns_loss = self.signature.has_default("return_loss", True)
        self.use(criterion, compute_loss_func)

    @property
    def accepted_columns(self) -> list[str] | None:
        """The dataset columns that the model or the loss may use.

        If the parameters of `forward` are unknown, the value is None, which means all columns.
        """
        if self.signature.is_unknown:
            return None
        return [*self.signature.parameters, "label", "label_ids", *self.label_names]

    def use(self, criterion: Criterion | None, compute_loss_func: Callable[..., torch.Tensor] | None) -> None:
        """Set the criterion or the loss function that computes the loss from now on.

        If both parameters are None, label smoothing or the model computes the loss.
        """
        self.criterion, self.compute_loss_func = criterion, compute_loss_func
        self._checks_shapes = True  # only for the first batch
        self.splits_labels = criterion is not None or compute_loss_func is not None
        if self._names_labels and self.splits_labels and not self.label_names:
            self.label_names = ["labels"]
        self._settle()

    def set(self, **settings: Any) -> None:
        """Set attributes of this object, such as `set(label_names=["labels"])`."""
        for name, value in settings.items():
            setattr(self, name, value)
        self._settle()

    def _settle(self) -> None:
        """Compute the attributes that follow from the other attributes. `use` and `set` call this method."""
        self.model_returns_loss = not self.splits_labels and self.smoother is None
        self.divides_by_items = self.compute_loss_func is not None or (self.takes_item_count and self.criterion is None)
        """Whether the loss is divided by the item count of the whole step. False with a criterion, because a criterion
        returns the mean over its batch."""

    def __call__(self, model: nn.Module, inputs: Any, items: Any = None) -> tuple[torch.Tensor, Any]:
        """Return the loss of a batch and the model's outputs.

        Args:
            model: the model, wrapped or not.
            inputs: a mapping (passed by name), a tuple or list (passed by position), or a single argument. With a
                criterion or loss function, the labels are the last element of a tuple or list of two or more elements.
            items: the number of labels of the whole step that are not -100; None if the number is unknown.

        Returns:
            The loss, usually a scalar. A model wrapped for several devices may return one loss per device.

        Raises:
            ModelError: if the model does not accept the batch, if the model returns no loss, or if a criterion gets a
                mapping without `labels`.
        """
        labels = None
        if not self.model_returns_loss:
            labels, inputs = self._take_labels(inputs)
        if items is not None and self.takes_item_count and self.criterion is None and isinstance(inputs, Mapping):
            inputs = {**inputs, "num_items_in_batch": items}
        outputs = self.forward(model, inputs)
        if self.model_returns_loss:
            return self._loss_of(outputs, inputs, model), outputs
        if self.compute_loss_func is not None:
            return self.compute_loss_func(outputs, labels, num_items_in_batch=items), outputs
        if self.criterion is not None:
            logits = logits_of(outputs)
            if self._checks_shapes:
                self._check_shapes(logits, labels)
            return self.criterion(logits, labels), outputs
        if self.smoother is not None and labels is not None:
            smoothed = outputs if isinstance(self.smoother, OwnSmoother) else logits_of(outputs)
            return self.smoother(smoothed, labels, shift=self.smooths_shifted, items=items), outputs
        return self._loss_of(outputs, inputs, model), outputs

    def forward(self, model: nn.Module, inputs: Any) -> Any:
        """Call the model with a batch.

        Raises:
            ModelError: if the batch does not fit the model's `forward`. The error lists the keys of the batch and the
                parameters of `forward`.
        """
        try:
            if isinstance(inputs, (dict, Mapping)):
                return model(**inputs)
            return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
        except TypeError as error:
            problem = self.signature.mismatch(inputs)
            if problem is None:
                raise
            problem += self._remedy(inputs)
            raise ModelError(f"{type(model).__name__}.forward cannot take the batch: {problem}") from error

    def _remedy(self, inputs: Any) -> str:
        """Return the end of an error text: usual reasons why a batch does not fit `forward`; empty if none is known."""
        if not isinstance(inputs, Mapping):
            separable = isinstance(inputs, (tuple, list)) and len(inputs) > 1 and not self.splits_labels
            criterion = "If the last value is the labels, pass a loss, such as `criterion=nn.CrossEntropyLoss()`."
            return f" {criterion}" if separable else ""
        remedy = " By default, columns that forward does not take, texts, and None are left out of the batch."
        if self.dropped_columns:
            remedy += f" Columns that forward does not take: {', '.join(self.dropped_columns)}."
        for name in self.signature.parameters:
            if name not in inputs and (column := closest(name, self.dropped_columns)):
                remedy += f" If {name!r} means the column {column!r}, give both the same name."
        renamed = [name for name in ("label", "label_ids") if name in self.signature.parameters and name not in inputs]
        if renamed and "labels" in inputs:
            remedy += f" The collator names the column {renamed[0]!r} 'labels': use this name in forward."
        return remedy

    def count_items(self, batches: list[Any]) -> torch.Tensor | None:
        """Return the number of labels of a step on this rank that are not ignored (-100).

        Returns:
            A scalar float tensor; None if the loss is not divided by this number, or if a batch has no labels.
        """
        if not self.divides_by_items:
            return None
        return count_items(batches, self._counted_labels)

    def labels_in(self, inputs: Any) -> Any:
        """Return the labels of a batch, detached: one tensor, or a tuple of tensors for several label names.

        Return None if the batch lacks one of the labels.
        """
        if not isinstance(inputs, (dict, Mapping)):
            return detach(inputs[-1]) if self._splits(inputs) else None
        if len(self.label_names) == 1:
            labels = inputs.get(self.label_names[0])
            return None if labels is None else detach(labels)
        parts = [inputs.get(name) for name in self.label_names]
        return None if not parts or any(part is None for part in parts) else tuple(map(detach, parts))

    def without_labels(self, inputs: Any) -> Any:
        """Return a batch for inference: the inputs that the model's `forward` accepts, but no optional labels.

        Labels stay in the batch if `forward` requires them.
        """
        if not isinstance(inputs, Mapping):
            return inputs[:-1] if self._splits(inputs) else inputs
        signature = self.signature
        known = inputs if signature.is_unknown else signature.parameters
        labels = {
            name for name in ("labels", *self.label_names) if name not in known or signature.has_default(name, None)
        }
        return {name: value for name, value in inputs.items() if name in known and name not in labels}

    def has_loss(self, inputs: Any) -> bool:
        """Return whether a loss can be computed from a batch.

        - For a batch with labels: True.
        - For a batch without labels, if the attribute `label_names` is not empty: False.
        - For other batches: the entry `return_loss` of the batch. Without this entry: the attribute `returns_loss`.
        """
        if self.labels_in(inputs) is not None:
            return True
        requested = inputs.get("return_loss") if isinstance(inputs, Mapping) else None
        return not self.label_names and bool(self.returns_loss if requested is None else requested)

    def _counted_labels(self, batch: Any) -> torch.Tensor:
        """Return the labels of a batch for the method `count_items`, including ignored labels (-100).

        Raises:
            KeyError: if the batch is a mapping with neither `shift_labels` nor `labels`.
            TypeError: if the labels are not a tensor.
        """
        mapping = isinstance(batch, Mapping)
        labels = predicted_labels(batch, self.shifts_labels) if mapping else self.labels_in(batch)
        if not isinstance(labels, torch.Tensor):
            raise TypeError("labels are not a tensor")
        return labels

    def _splits(self, inputs: Any) -> bool:
        """Return whether the last element of a batch contains the labels."""
        return isinstance(inputs, (tuple, list)) and len(inputs) > 1 and self.splits_labels

    def _take_labels(self, inputs: Any) -> tuple[Any, Any]:
        """Return the labels of a batch, and the batch without the labels.

        If the batch has no labels, return None and the whole batch.

        Raises:
            ModelError: if the batch is a mapping without the key `labels`, and the attribute `criterion` is not None.
        """
        if not isinstance(inputs, Mapping):
            if self._splits(inputs):
                return inputs[-1], inputs[:-1]
            self._tell_unsmoothed("is not a dict")
            return None, inputs
        if "labels" in inputs:
            return inputs["labels"], {key: value for key, value in inputs.items() if key != "labels"}
        if self.criterion is None:
            self._tell_unsmoothed(f"has no 'labels', only: {', '.join(map(str, inputs))}")
            return None, inputs
        names = ", ".join(map(str, inputs))
        raise ModelError(
            f"The batch has no 'labels' for the criterion, only: {names}. Name the column of labels 'labels'."
        )

    def _check_shapes(self, logits: Any, labels: Any) -> None:
        """Warn if the criterion compares outputs and labels of different shapes."""
        self._checks_shapes = False
        if problem := broadcasts(self.criterion, logits, labels):
            logger.warning("%s", problem)

    def _tell_unsmoothed(self, problem: str) -> None:
        """Warn once that label smoothing has no effect, because a batch has no `labels`.

        Without label smoothing, do nothing.

        Args:
            problem: the end of a sentence that begins with "the batch", such as "is not a dict".
        """
        if self.smoother is not None and not self.splits_labels and not self._told_unsmoothed:
            self._told_unsmoothed = True
            name = "label_smoother" if isinstance(self.smoother, OwnSmoother) else "label_smoothing_factor"
            logger.warning("`%s` has no effect: the batch %s. Name the column of labels 'labels'.", name, problem)

    def _loss_of(self, outputs: Any, inputs: Any, model: nn.Module) -> torch.Tensor:
        """Return the loss from the outputs of a model.

        Raises:
            ModelError: if the outputs have no loss.
        """
        loss: Any = None
        if isinstance(outputs, (dict, Mapping)):  # `dict` first: it is the most common type and quick to test
            loss = outputs.get("loss")
        elif isinstance(outputs, (tuple, list)):
            loss = outputs[0]
        elif isinstance(outputs, torch.Tensor) and outputs.dim() == 0:
            loss = outputs
        elif hasattr(outputs, "loss"):
            loss = outputs.loss
        if isinstance(loss, torch.Tensor) and (
            loss.dim() == 0
            or loss.numel() == 1
            or isinstance(outputs, Mapping)
            or getattr(model, "gathers_losses", False)
        ):
            return loss
        if isinstance(loss, (int, float)):
            raise ModelError(
                f"{type(model).__name__} returned the loss {loss!r}, which is a number without a gradient. Return the "
                "tensor, without `.item()` or `float()`."
            )
        got = f"the keys {described(outputs)}" if isinstance(outputs, Mapping) else described(outputs)
        expected = ", ".join(self.label_names) or "-"
        raise ModelError(
            f"{type(model).__name__} returned no loss, but {got}, from a batch of {described(inputs)}. Return the loss "
            "as `loss` or as the first element of a tuple, or pass `criterion=` or `compute_loss_func=` to the "
            "Trainer. If the model computes its loss from labels, make sure that the batch has them under the expected "
            f"name ({expected})."
        )


def logits_of(outputs: Any) -> Any:
    """Return the logits of a model's outputs: `logits`, else the first output, else the outputs themselves."""
    if isinstance(outputs, Mapping):
        return outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    if hasattr(outputs, "logits"):
        return outputs.logits
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs
