"""The model inside of what averages its gradients over processes, and what that would miss without a word."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from ...engine.run import Run
from ...events.errors import ModelError

logger = logging.getLogger(__name__)


def trainable(weights: Iterable[nn.Parameter]) -> list[bool]:
    """Return which weights are trained, in their order."""
    return [weight.requires_grad for weight in weights]


class Wrapping:
    """Wraps a run's model, again when other weights are trained, and notices a step that passed the wrapper by."""

    def __init__(self, run: Run, wrap: Callable[[nn.Module, Any], nn.Module]) -> None:
        """Prepare to wrap with `wrap(model, optimizer)`, which looks at the weights that are trainable then."""
        self.run = run
        self.weights: list[nn.Parameter] = []
        """The weights of the model, in its order."""
        self._wrap = wrap
        self._trained: list[bool] = []
        self._called = False

    def wrap(self, model: nn.Module, optimizer: Any) -> nn.Module:
        """Return the model, wrapped."""
        self.weights = list(model.parameters())
        self._trained = trainable(self.weights)
        wrapped = self._wrap(model, optimizer)
        wrapped.register_forward_pre_hook(self._note)
        return wrapped

    def follow(self) -> None:
        """Wrap the model again if other weights are to be trained than when it was wrapped. Call it between steps."""
        now = trainable(self.weights)
        if now == self._trained:
            return
        run = self.run
        updated = {id(weight) for group in run.optimizer.param_groups for weight in group["params"]}
        named = zip(run.model.named_parameters(), self._trained)
        lost = [name for (name, weight), before in named if weight.requires_grad > before and id(weight) not in updated]
        if lost:
            logger.warning(
                "From step %d on %d more weights are trainable, such as %s, and stay as they are: they were frozen "
                "when the optimizer was made, which does not have them. To train them in the course of a run, have "
                "them trainable before it, and frozen by Freeze(..., until=...).",
                *(run.state.global_step + 1, len(lost), lost[0]),
            )
        wrapper_trains = run.model_wrapped.training
        run.model_wrapped = self.wrap(run.model, run.optimizer)
        # Else the first step after an evaluation would find a wrapper that trains, and leave what is in it evaluating.
        run.model_wrapped.training = wrapper_trains

    @contextmanager
    def watched(self, around: AbstractContextManager[Any], last: bool) -> Iterator[None]:
        """Enclose forward and backward of a batch, inside of `around`.

        Raises:
            ModelError: if it is the last of a step, and gradients came about without a call of the wrapper.
        """
        self._called = False
        with around:
            yield
        if last and not self._called and any(weight.grad is not None for weight in self.weights):
            kind = type(self.run.model_wrapped).__name__
            raise ModelError(
                f"A batch was learned from without calling the model inside of {kind}, which averages gradients over "
                "the processes when it is called itself: each would go on with weights of its own. In `compute_loss` "
                "and `training_step` call the `model` that they are given, not `self.model` and not `model.module`."
            )

    def _note(self, *_: Any) -> None:
        self._called = True
