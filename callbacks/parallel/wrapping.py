"""Wrap a model in DDP or a similar class, and detect steps that bypass the wrapper."""

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
    """Return `requires_grad` of each weight, in the given order."""
    return [weight.requires_grad for weight in weights]


class Wrapping:
    """Wraps the model of a run, and detects steps that bypass the wrapper.

    `follow` wraps the model again if the set of trainable weights has changed.
    """

    def __init__(self, run: Run, wrap: Callable[[nn.Module, Any], nn.Module]) -> None:
        """Store the function that wraps the model: `wrap(model, optimizer)` returns the wrapper."""
        self.run = run
        self.weights: list[nn.Parameter] = []
        """The weights of the model, in the order of `model.parameters()`."""
        self._wrap = wrap
        self._trained: list[bool] = []
        self._called = False

    def wrap(self, model: nn.Module, optimizer: Any) -> nn.Module:
        """Return the wrapped model."""
        self.weights = list(model.parameters())
        self._trained = trainable(self.weights)
        wrapped = self._wrap(model, optimizer)
        wrapped.register_forward_pre_hook(self._note)
        return wrapped

    def follow(self) -> None:
        """Wrap the model again if the set of trainable weights changed. Call this method between steps.

        A wrapper registers only the weights that are trainable when the wrapper is built.
        """
        now = trainable(self.weights)
        if now == self._trained:
            return
        run = self.run
        updated = {id(weight) for group in run.optimizer.param_groups for weight in group["params"]}
        named = zip(run.model.named_parameters(), self._trained)
        lost = [name for (name, weight), before in named if weight.requires_grad > before and id(weight) not in updated]
        if lost:
            logger.warning(
                "From step %d, %d more weights are trainable, such as %s, but they are not updated: they were frozen "
                "when the optimizer was built, so it does not hold them. To train them later in a run, make them "
                "trainable before it and freeze them with Freeze(..., until=...).",
                run.state.global_step + 1,
                len(lost),
                lost[0],
            )
        wrapper_trains = run.model_wrapped.training
        run.wrap(self.wrap(run.model, run.optimizer))
        # Otherwise the next step after an evaluation sees a wrapper in train mode, and leaves its model in eval mode.
        run.model_wrapped.training = wrapper_trains

    @contextmanager
    def watched(self, around: AbstractContextManager[Any], last: bool) -> Iterator[None]:
        """Return a context for forward and backward of one batch, which detects a step that bypasses the wrapper.

        Args:
            around: another context for the same batch, such as `no_sync()`.
            last: whether the batch is the last batch of its step.

        Raises:
            ModelError: if `last` is True, a weight has a gradient, and the wrapper was not called for this batch.
        """
        self._called = False
        with around:
            yield
        if last and not self._called and any(weight.grad is not None for weight in self.weights):
            kind = type(self.run.model_wrapped).__name__
            raise ModelError(
                f"A step computed gradients without calling the {kind} wrapper. The wrapper averages gradients over "
                "the ranks only if it is called itself, so the weights of the ranks would diverge. In `compute_loss` "
                "and `training_step`, call the `model` argument, not `self.model` or `model.module`."
            )

    def _note(self, *_: Any) -> None:
        self._called = True
