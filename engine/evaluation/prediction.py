"""Predict one batch: compute loss, logits and labels without gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from ..data.batches import detach
from ..loss.objective import Objective
from ..loss.signature import user_model


def prediction_step(
    model: nn.Module,
    batch: Any,
    loss_only: bool,
    ignore_keys: list[str] | None,
    objective: Objective,
    compute_loss: Any,
) -> tuple[Any, Any, Any]:
    """Return loss, logits and labels of a batch, without gradients. A value that does not exist is None.

    If a loss can be computed from the batch, `compute_loss` calls the model. If not, `objective` calls the model.

    Args:
        model: the model, in evaluation mode.
        batch: the batch, on the model's device.
        loss_only: return None for logits and labels.
        ignore_keys: keys of the outputs that are not logits; by default the model config's
            `keys_to_ignore_at_inference`.
        objective: finds the labels in the batch.
        compute_loss: a function that receives the model and the batch, and returns the loss and the outputs.

    Returns:
        The mean loss, a scalar; logits and labels of shape (rows, ...), or tuples of such tensors. If the model
        computes a loss without labels, the labels are an empty tuple.
    """
    labels = objective.labels_in(batch)
    if labels is None and objective.has_loss(batch):
        labels = ()  # as in transformers, so that metrics of models such as CLIP are computed
    loss = None
    computed_gradients = torch.is_grad_enabled()
    torch.set_grad_enabled(False)  # takes a third of the time of `with torch.no_grad()`
    try:
        if labels is not None:
            loss, outputs = compute_loss(model, batch)
            loss = mean_loss(loss)
        else:
            outputs = objective.forward(model, batch)
    finally:
        torch.set_grad_enabled(computed_gradients)
    if loss_only:
        return loss, None, None
    skipped: Collection[str] = ()
    if isinstance(outputs, (dict, Mapping)):  # `dict` first: it is the most common type and quick to test
        skipped = {"loss"} if loss is not None else set()
        skipped.update(ignored_keys(model) if ignore_keys is None else ignore_keys)
    logits = detach(_logits(outputs, skipped, drop_first=loss is not None and objective.model_returns_loss))
    return loss, logits, labels


def mean_loss(loss: Any) -> torch.Tensor:
    """Return the mean of a loss, without gradients. A scalar is its own mean."""
    if loss.requires_grad:
        loss = loss.detach()
    mean: torch.Tensor = loss.mean() if loss.dim() else loss
    return mean


def ignored_keys(model: nn.Module) -> list[str]:
    """Return the keys of a model's outputs that are not logits, as the config of the model lists them.

    If the config has no such list, return `["past_key_values"]`. If the model has no config, return an empty list.
    """
    config = getattr(user_model(model), "config", None)
    return list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])) if config else []


def main_input(model: nn.Module, batch: Any) -> Any:
    """Return the main input of a batch.

    For a mapping, this is the value of the key `model.main_input_name` (default `input_ids`), or None without this key.
    For any other batch, this is the first element.
    """
    return (
        batch.get(getattr(user_model(model), "main_input_name", "input_ids"))
        if isinstance(batch, Mapping)
        else batch[0]
    )


def _logits(outputs: Any, skipped: Collection[str], drop_first: bool) -> Any:
    """Return the outputs that are logits: one value, or a tuple of several values.

    Args:
        outputs: outputs of the model.
        skipped: keys that are not logits, if `outputs` is a mapping.
        drop_first: whether to leave out the first element, which is the loss, if `outputs` is a tuple or list.
    """
    if isinstance(outputs, (dict, Mapping)):
        outputs = tuple([value for key, value in outputs.items() if key not in skipped])
    elif isinstance(outputs, (tuple, list)):
        outputs = tuple(outputs[1:] if drop_first else outputs)
    else:
        return outputs
    return outputs[0] if len(outputs) == 1 else outputs
