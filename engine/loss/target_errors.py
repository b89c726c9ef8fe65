"""Explain errors of the loss functions of torch: the types and shapes of the scores and the labels do not match."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

FUNCTIONAL = "torch/nn/functional.py"
"""The end of the path of the module with the loss functions of torch."""

CLASSES = ("cross_entropy", "nll_loss", "multi_margin_loss")
"""Loss functions of torch that take the number of the class of each sample."""

_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_BROADCASTING = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss")
"""Loss functions of torch that accept two shapes, and then compare each output with each target."""
_ELEMENTWISE = (*_BINARY, *_BROADCASTING, "multilabel_soft_margin_loss", "soft_margin_loss", "kl_div")
"""Loss functions of torch that compare each output with the target at the same position."""

_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss)
"""The loss functions in `_BROADCASTING` as modules."""


def target_note(error: BaseException) -> str:
    """Return a note about an error in a loss function of torch: what the function received, and what it needs.

    The note is empty if the error has another cause. The function reads the arguments from the frames of the traceback.
    """
    if not isinstance(error, (RuntimeError, ValueError)):
        return ""
    for name, scores, target in _calls(error):
        remedy = _of_classes(scores, target) if name in CLASSES else _of_elements(name, scores, target)
        if remedy:
            kinds = f"outputs as {_short(scores)} of shape {_shape(scores)} and labels as {_short(target)} of shape "
            return f"`{name}` received {kinds}{_shape(target)}. {remedy}"
    return ""


def broadcasts(criterion: Any, outputs: Any, labels: Any) -> str:
    """Return a warning if a criterion compares each output with each label; an empty text otherwise.

    For example, `mse_loss` broadcasts outputs of shape (8, 1) and labels of shape (8,) to the shape (8, 8). The loss is
    then wrong, but torch raises no error.
    """
    name = getattr(criterion, "__name__", type(criterion).__name__)
    known = type(criterion) in _MODULES or criterion in [getattr(functional, each) for each in _BROADCASTING]
    tensors = isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor)
    if not known or not tensors or outputs.shape == labels.shape or not labels.dim():
        return ""
    return (
        f"{name} receives outputs of shape {_shape(outputs)} and labels of shape {_shape(labels)}. It compares each "
        f"output with several labels, so the loss is wrong. {_same_shape(outputs, labels)}"
    )


def _calls(error: BaseException) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield name, scores and targets of each loss function of torch in a traceback, the innermost call first."""
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        name, values = frame.f_code.co_name, frame.f_locals
        if name in (*CLASSES, *_ELEMENTWISE) and frame.f_code.co_filename.replace("\\", "/").endswith(FUNCTIONAL):
            scores, target = values.get("input"), values.get("target")
            if isinstance(scores, torch.Tensor) and isinstance(target, torch.Tensor):
                yield name, scores, target


def _of_classes(scores: torch.Tensor, target: torch.Tensor) -> str:
    """Return the remedy for scores and class labels that do not fit together; empty if they fit."""
    if scores.dim() == 1 and target.dim():
        return (
            "The outputs have one score for each sample, and this loss needs one for each class: (rows, classes). For "
            "one score and two classes, use `binary_cross_entropy_with_logits` and `labels.float()`."
        )
    wanted = (*scores.shape[:1], *scores.shape[2:])
    if target.shape == scores.shape and target.is_floating_point():
        return ""
    if target.shape == scores.shape:
        return (
            "Labels of this shape are probabilities, which are floating point: pass the numbers of the classes, as "
            "in `labels.argmax(1)`, or `labels.float()`."
        )
    if target.shape == (*wanted, 1):
        cast = "" if target.dtype is torch.int64 else ".to(torch.int64)"
        return f"Class labels have the shape {wanted} and are int64: pass `labels.squeeze(-1){cast}`."
    if scores.dim() > 2 and target.shape == scores.shape[:-1]:
        return (
            "The classes are dimension 1 of the outputs: pass `outputs.flatten(0, -2)` and `labels.flatten()`, or "
            "`outputs.movedim(-1, 1)`."
        )
    if tuple(target.shape) != wanted:
        return f"For these outputs, class labels have the shape {wanted}."
    if target.dtype not in (torch.int64, torch.uint8):
        return (
            'Class labels are int64: convert them with `int(label)`, `labels.astype("int64")` or '
            "`labels.to(torch.int64)`. Labels of several classes at once, and targets of a regression, are floating "
            "point and need another loss."
        )
    return ""


def _of_elements(name: str, outputs: torch.Tensor, target: torch.Tensor) -> str:
    """Return the remedy if the outputs and the target differ in shape or type, or have values out of range; else ""."""
    remedies = []
    if outputs.shape != target.shape:
        remedies.append(_same_shape(outputs, target))
    if not target.is_floating_point():
        remedies.append("This loss needs floating-point targets: `labels.float()`.")
    elif target.dtype is not outputs.dtype:
        remedies.append(f"Give the labels the type of the outputs: `labels.to(torch.{_short(outputs)})`.")
    if not remedies and name == "binary_cross_entropy":
        if _beyond(outputs):
            remedies.append(
                "The outputs must be from 0 to 1: use `binary_cross_entropy_with_logits`, or add a sigmoid."
            )
        elif _beyond(target):
            remedies.append("The labels must be from 0 to 1: 1 for the class, and 0 for other samples.")
    return " ".join(remedies)


def _same_shape(outputs: torch.Tensor, labels: torch.Tensor) -> str:
    if outputs.shape == (*labels.shape, 1):
        return "Give both the same shape: `outputs.squeeze(-1)` in forward, or `labels.unsqueeze(-1)`."
    if labels.shape == (*outputs.shape, 1):
        return "Give both the same shape: `labels.squeeze(-1)`, or `outputs.unsqueeze(-1)` in forward."
    return "Give both the same shape."


def _beyond(values: torch.Tensor) -> bool:
    """Return whether a value is below 0, above 1 or NaN.

    Return False on a GPU, because the failed kernel makes it impossible to read values.
    """
    return values.device.type == "cpu" and not bool(((values >= 0) & (values <= 1)).all())


def _short(values: torch.Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _shape(values: torch.Tensor) -> str:
    return str(tuple(values.shape))
