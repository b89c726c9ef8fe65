"""The objective: from a batch to a loss, in every way in which models and users state it."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...events.errors import ModelError
from ..data.batches import detach

logger = logging.getLogger(__name__)

Criterion = Callable[[Any, Any], torch.Tensor]


class Objective:
    """How the loss of one model is computed, and what its labels are called."""

    def __init__(
        self,
        model: nn.Module,
        *,
        criterion: Criterion | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        label_smoothing: float = 0.0,
        label_names: list[str] | None = None,
    ) -> None:
        """Inspect the model once.

        Args:
            model: returns its loss under `loss` or as its first output, unless one of the next two is given.
            criterion: called as `criterion(logits, labels)` for models that return logits only; a mean over the batch.
            compute_loss_func: called as `compute_loss_func(outputs, labels, num_items_in_batch=...)`; divides by the
                items of the whole step itself.
            label_smoothing: share of the target spread over all classes.
            label_names: what labels are called in a batch; by default, the parameters of `forward` named like labels.
        """
        self.parameters = dict(inspect.signature(model.forward).parameters)
        self.takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())
        self.criterion = criterion
        self.compute_loss_func = compute_loss_func
        self.smoother = LabelSmoother(label_smoothing) if label_smoothing and _has_one_class(model) else None
        self.splits_labels = criterion is not None or compute_loss_func is not None
        self.model_returns_loss = not self.splits_labels and self.smoother is None
        # What transformers' models say of themselves, and what their `**kwargs` are taken to mean.
        self.takes_item_count = bool(getattr(model, "accepts_loss_kwargs", self.takes_any))
        self.shifts_labels = _shifts_labels(model)
        self.smooths_shifted = _is_causal(model)
        if label_names is None:
            label_names = label_names_of(model)
            if not label_names and (criterion is not None or compute_loss_func is not None):
                label_names = ["labels"]
        self.label_names = label_names
        self.returns_loss = any(
            name == "return_loss" and parameter.default is True for name, parameter in self.parameters.items()
        )

    @property
    def accepted_columns(self) -> list[str]:
        """The columns of a dataset that the model, or the loss, has a use for."""
        return [*self.parameters, "label", "label_ids", *self.label_names]

    def set(self, **settings: Any) -> None:
        """Replace what was found by looking at the model, as `label_names`, by what the user knows of it."""
        for name, value in settings.items():
            setattr(self, name, value)

    def __call__(self, model: nn.Module, inputs: Any, items: Any = None) -> tuple[torch.Tensor, Any]:
        """Return the loss of a batch and the model's outputs.

        Args:
            model: the model, wrapped or not.
            inputs: a dict passed by name, or a tuple passed by position (its last element being the labels, where a
                criterion wants them).
            items: what the losses of a whole step are averaged over, see `count_items`.

        Raises:
            ModelError: if the model does not take the batch, or returns no loss.
        """
        labels = None
        if not self.model_returns_loss:
            labels, inputs = self._take_labels(inputs)
        if items is not None and self.takes_item_count and isinstance(inputs, Mapping):
            inputs = {**inputs, "num_items_in_batch": items}
        outputs = self.forward(model, inputs)
        if self.model_returns_loss:
            return self._loss_of(outputs, inputs, model), outputs
        if self.compute_loss_func is not None:
            return self.compute_loss_func(outputs, labels, num_items_in_batch=items), outputs
        if self.criterion is not None:
            return self.criterion(logits_of(outputs), labels), outputs
        if self.smoother is not None and labels is not None:
            return self.smoother(logits_of(outputs), labels, shift=self.smooths_shifted, items=items), outputs
        return self._loss_of(outputs, inputs, model), outputs

    def forward(self, model: nn.Module, inputs: Any) -> Any:
        """Call the model with a batch; if it cannot take it, say what it takes and what the batch has."""
        try:
            if isinstance(inputs, (dict, Mapping)):
                return model(**inputs)
            return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
        except TypeError as error:
            problem = self._mismatch(inputs)
            if problem is None:
                raise
            raise ModelError(f"{type(model).__name__}.forward cannot take the batch: {problem}") from error

    def count_items(self, batches: list[Any]) -> torch.Tensor | None:
        """Return the number of label items of a step that are not ignored (-100), where the loss wants to know it."""
        if not (self.takes_item_count or self.compute_loss_func is not None):
            return None
        try:
            counted = [self._labels_that_count(batch).ne(-100).sum() for batch in batches]
        except (TypeError, AttributeError, KeyError):
            return None
        return torch.stack(counted).sum() / 1 if counted else None  # as a float, which is what transformers passes on

    def labels_in(self, inputs: Any) -> Any:
        """Return the labels of a batch: one tensor, a tuple of them, or None where there are none."""
        if not isinstance(inputs, Mapping):
            return detach(inputs[-1]) if self._splits(inputs) else None
        if self.label_names and all(inputs.get(name) is not None for name in self.label_names):
            labels = tuple(detach(inputs[name]) for name in self.label_names)
            return labels[0] if len(labels) == 1 else labels
        return None

    def has_loss(self, inputs: Any) -> bool:
        """Say whether a loss can be computed of a batch."""
        return self.labels_in(inputs) is not None or (not self.label_names and self.returns_loss)

    def _labels_that_count(self, batch: Any) -> torch.Tensor:
        if not isinstance(batch, Mapping):
            found = self.labels_in(batch)
        elif "shift_labels" in batch:
            found = batch["shift_labels"]
        else:
            found = batch["labels"][..., 1:] if self.shifts_labels else batch["labels"]
        if not isinstance(found, torch.Tensor):
            raise TypeError("labels are no tensor")
        return found

    def _splits(self, inputs: Any) -> bool:
        return isinstance(inputs, (tuple, list)) and len(inputs) > 1 and self.splits_labels

    def _take_labels(self, inputs: Any) -> tuple[Any, Any]:
        """Split the labels off a batch, where something other than the model turns them into a loss."""
        if not isinstance(inputs, Mapping):
            return (inputs[-1], inputs[:-1]) if self._splits(inputs) else (None, inputs)
        if "labels" in inputs:
            return inputs["labels"], {key: value for key, value in inputs.items() if key != "labels"}
        if self.criterion is None:
            return None, inputs
        names = ", ".join(map(str, inputs))
        raise ModelError(f"A criterion is given, but the batch has no 'labels', only: {names}.")

    def _loss_of(self, outputs: Any, inputs: Any, model: nn.Module) -> torch.Tensor:
        loss: Any = None
        if isinstance(outputs, (dict, Mapping)):  # dict first: it is the usual one, and quicker to tell
            loss = outputs.get("loss")
        elif isinstance(outputs, (tuple, list)):
            loss = outputs[0]
        elif isinstance(outputs, torch.Tensor) and outputs.dim() == 0:
            loss = outputs
        elif hasattr(outputs, "loss"):
            loss = outputs.loss
        several = isinstance(outputs, Mapping) or getattr(model, "gathers_losses", False)
        if isinstance(loss, torch.Tensor) and (loss.dim() == 0 or loss.numel() == 1 or several):
            return loss
        got = f"the keys {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else _in_words(outputs)
        fed = f"{', '.join(map(str, inputs))}" if isinstance(inputs, Mapping) else _in_words(inputs)
        expected = ", ".join(self.label_names) or "-"
        raise ModelError(
            f"{type(model).__name__} returned no loss, but {got}, from a batch of {fed}. Return it as `loss`, or as "
            f"the first of a tuple, or pass `criterion=` or `compute_loss_func=` to the Trainer. If the model computes "
            f"it from labels, see that the batch has them under the name expected ({expected})."
        )

    def _mismatch(self, inputs: Any) -> str | None:
        """Say what of a batch the model's forward does not take or misses; None if the two agree."""
        signature = inspect.Signature(list(self.parameters.values()))
        try:
            if isinstance(inputs, Mapping):
                signature.bind(**inputs)
            else:
                signature.bind(*inputs) if isinstance(inputs, (tuple, list)) else signature.bind(inputs)
        except TypeError as error:
            has = ", ".join(map(str, inputs)) if isinstance(inputs, Mapping) else _in_words(inputs)
            takes = ", ".join(str(parameter).split(":")[0].split("=")[0] for parameter in self.parameters.values())
            return f"{error}. The batch has: {has}. Its forward takes: {takes}."
        return None


@dataclass(frozen=True)
class LabelSmoother:
    """Cross entropy against a target of which a share is spread over all classes (Szegedy et al., arXiv:1512.00567).

    The operations and their order are those of transformers' class of this name.
    """

    epsilon: float = 0.1
    """The share that is spread."""
    ignored: int = -100
    """The label of items that do not count."""

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, shift: bool, items: Any) -> torch.Tensor:
        """Return the loss of logits (..., classes) and labels (...), averaged over `items`, or those that count."""
        if shift:
            logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        negative = -nn.functional.log_softmax(logits, dim=-1)
        if labels.dim() == negative.dim() - 1:
            labels = labels.unsqueeze(-1)
        ignored = labels.eq(self.ignored)
        likelihood = negative.gather(dim=-1, index=torch.clamp(labels, min=0))
        spread = negative.sum(dim=-1, keepdim=True, dtype=torch.float32)
        likelihood.masked_fill_(ignored, 0.0)
        spread.masked_fill_(ignored, 0.0)
        count = ignored.numel() - ignored.long().sum() if items is None else items
        return (1 - self.epsilon) * (likelihood.sum() / count) + self.epsilon * (
            spread.sum() / (count * negative.shape[-1])
        )


def label_names_of(model: nn.Module) -> list[str]:
    """Return the parameters of a model's forward that are labels, judged by their names."""
    parameters = inspect.signature(type(model).forward).parameters
    also = ("start_positions", "end_positions") if "QuestionAnswering" in type(model).__name__ else ()
    return [name for name in parameters if "label" in name or name in also]


def logits_of(outputs: Any) -> Any:
    """Return the logits of a model's outputs: under `logits`, the first of a tuple, or the outputs themselves."""
    if isinstance(outputs, Mapping):
        return outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    if hasattr(outputs, "logits"):
        return outputs.logits
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def _has_one_class(model: nn.Module) -> bool:
    """Say whether each label is one class, so that a share of it can be spread; warn if it is not."""
    several = getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"
    if several:
        logger.warning(
            "`label_smoothing_factor` is ignored: %s is configured for rows that belong to several classes at once, "
            "and it is the share of one class that is spread.",
            type(model).__name__,
        )
    return not several


def _is_causal(model: nn.Module) -> bool:
    """Say whether transformers lists the model as one that predicts each label from the position before."""
    auto = sys.modules.get("transformers.models.auto.modeling_auto")
    return auto is not None and type(model).__name__ in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _shifts_labels(model: nn.Module) -> bool:
    """Say whether the model's own loss does so, so that the first label is never predicted and must not be counted."""
    losses = sys.modules.get("transformers.loss.loss_utils")
    if losses is None or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return losses.LOSS_MAPPING.get(getattr(model, "loss_type", None)) is losses.ForCausalLMLoss


def _in_words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(_in_words(part) for part in value) or 'nothing'}"
    return f"a {type(value).__name__}"
