"""The item count of a step: the number of its labels that are not -100. The loss of a step is divided by this number.

With gradient accumulation, the batches of a step may have different numbers of labels. Division by the item count of
the whole step gives each label the same weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ...events.imported import imported
from ..data.batches import IGNORED_LABEL
from .signature import user_model


def count_items(batches: Iterable[Any], labels_of: Callable[[Any], torch.Tensor]) -> torch.Tensor | None:
    """Return the number of labels that are not ignored (-100), as a scalar float tensor.

    Args:
        batches: batches of one step on this rank.
        labels_of: a function that takes a batch and returns the labels that the loss uses. It raises TypeError,
            AttributeError or KeyError if the batch has no labels.

    Returns:
        The number; None if a batch has no labels, or if there are no batches.
    """
    try:
        counts = [labels_of(batch).ne(IGNORED_LABEL).sum() for batch in batches]
    except (TypeError, AttributeError, KeyError):
        return None
    return torch.stack(counts).sum() / 1 if counts else None  # transformers passes on a float too


def predicted_labels(batch: Mapping[str, Any], shifted: bool) -> Any:
    """Return the labels of a batch that the model must predict.

    Args:
        batch: a batch with `shift_labels` or `labels`. The function returns `shift_labels` unchanged.
        shifted: whether to leave out the first label of each row of `labels`, because each position predicts the next
            label. If True, `labels` has shape (rows, tokens).

    Raises:
        KeyError: if the batch has neither `shift_labels` nor `labels`.
    """
    if "shift_labels" in batch:
        return batch["shift_labels"]
    return batch["labels"][..., 1:] if shifted else batch["labels"]


def loss_shifts_labels(model: nn.Module) -> bool:
    """Return whether the model's own loss is the causal loss of transformers, which leaves out the first label."""
    model = user_model(model)
    losses = imported("transformers.loss.loss_utils")
    if losses is None or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return losses.LOSS_MAPPING.get(getattr(model, "loss_type", None)) is losses.ForCausalLMLoss
