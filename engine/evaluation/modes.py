"""Training and evaluation mode: in the first step after an evaluation, each module returns to its earlier mode."""

from __future__ import annotations

from weakref import WeakSet

from torch import nn

_KEPT: WeakSet[nn.Module] = WeakSet()
"""Modules that were in evaluation mode while their model was in training mode, such as a frozen BatchNorm."""


def begin_training(model: nn.Module) -> None:
    """Put a model and all its modules into training mode, as transformers does at the start of a training."""
    _KEPT.difference_update(model.modules())
    model.train()


def to_eval(model: nn.Module) -> None:
    """Put a model into evaluation mode. Store which of its modules were in evaluation mode before, for `to_train`."""
    if model.training:
        for module in model.modules():
            (_KEPT.discard if module.training else _KEPT.add)(module)
    model.eval()


def to_train(model: nn.Module) -> None:
    """Put a model back into training mode, except for modules that were in evaluation mode before `to_eval`."""
    model.train()
    if _KEPT:
        for module in model.modules():
            if module in _KEPT:
                module.training = False
