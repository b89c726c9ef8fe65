"""Label smoothing: cross entropy with targets that give every class a small probability."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...events.imported import imported
from ..data.batches import IGNORED_LABEL
from .signature import user_model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelSmoother:
    """Cross entropy with label smoothing (Szegedy et al., arXiv:1512.00567).

    The loss is `(1 - epsilon) * nll + epsilon * mean over classes of -log p`. The operations and their order are the
    same as in transformers' `LabelSmoother`, so the results are equal bit for bit.
    """

    epsilon: float = 0.1
    """Probability that is spread evenly over all classes."""
    ignored: int = IGNORED_LABEL
    """Label of items that do not count."""

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, shift: bool, items: Any) -> torch.Tensor:
        """Return the loss, a scalar.

        Args:
            logits: shape (..., classes).
            labels: class indices, shape (...) or (..., 1).
            shift: whether to compare the logits of each position with the label of the next position, as in causal
                models.
            items: the item count of the step, which divides the summed loss. None: the number of labels of this batch
                that are not ignored.
        """
        if shift:
            # Prompt tuning of peft puts virtual tokens before the others. They have logits, and no labels. As in peft,
            # the last of them predicts the first label.
            virtual = max(0, logits.shape[-2] - labels.shape[-1])
            labels = nn.functional.pad(labels, (virtual, 0), value=self.ignored) if virtual else labels
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


@dataclass(frozen=True)
class OwnSmoother:
    """A label smoother that the program set. It is called as transformers calls its `LabelSmoother`."""

    function: Callable[..., torch.Tensor]
    """Called as `function(outputs, labels, num_items_in_batch=...)`. For causal models, also `shift_labels=True`."""

    def __call__(self, outputs: Any, labels: torch.Tensor, shift: bool, items: Any) -> torch.Tensor:
        """Return the loss, a scalar.

        Args:
            outputs: the outputs of the model.
            labels: the labels.
            shift: whether the logits of each position belong to the label of the next position.
            items: the item count of the step, or None.
        """
        shifted = {"shift_labels": True} if shift else {}
        return self.function(outputs, labels, **shifted, num_items_in_batch=items)


Smoother = LabelSmoother | OwnSmoother


def smoother_for(model: nn.Module, epsilon: float) -> LabelSmoother | None:
    """Return the smoother for a model; None if `epsilon` is 0 or the model's labels cannot be smoothed.

    Label smoothing needs one class per item. A model with `problem_type="multi_label_classification"` in its config
    gets no smoother, and a warning is logged.
    """
    if not epsilon:
        return None
    model = user_model(model)
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        logger.warning(
            "`label_smoothing_factor` is ignored: %s is configured for multi-label classification, and label smoothing "
            "needs one class per sample.",
            type(model).__name__,
        )
        return None
    return LabelSmoother(epsilon)


def smoothing_refusal(epsilon: float, replaces: str) -> str:
    """Return the error text for a user who sets label smoothing and also passes a loss.

    Args:
        epsilon: the value of `label_smoothing_factor`.
        replaces: the argument that passes the loss, such as `criterion`.
    """
    return (
        f"`label_smoothing_factor={epsilon}` smooths the labels of the built-in cross entropy, and `{replaces}` "
        f"replaces it. Smooth in `{replaces}`, for example with `nn.CrossEntropyLoss(label_smoothing={epsilon})`, or "
        "leave it out."
    )


def is_causal(model: nn.Module) -> bool:
    """Return whether transformers lists the class of the model as a causal language model.

    The loss of such a model compares the logits of each position with the label of the next position.
    """
    auto = imported("transformers.models.auto.modeling_auto")
    return auto is not None and type(user_model(model)).__name__ in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
