"""The backward pass of a dry batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...run import Run


@dataclass
class DryStepper:
    """The object that runs the backward pass during a dry batch, in place of the `Stepper` of the run.

    The method `backward` announces no event. It stores the gradients in the attribute `grads`, not in the parameters.
    With reentrant activation checkpointing, the parameters get gradients too. The function `run_model` removes the
    gradients of the parameters.
    """

    run: Run
    """The run."""
    weights: dict[str, nn.Parameter]
    """The trainable parameters of the model and of the loss, by name."""
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    """The gradients of the parameters in `weights`, by name. A parameter without a gradient is left out."""
    accumulating: int = 1
    """The number of batches of the step: a dry batch is a step with one batch."""
    completing: bool = True
    """Whether the batch is the last of its step."""

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Compute the gradients of a loss, and store them in the field `grads` of this object.

        Args:
            loss: a tensor with one element.
            **options: options of `torch.Tensor.backward`, such as `retain_graph`.
        """
        self.run.step.loss = loss
        names, weights = list(self.weights), list(self.weights.values())
        if not loss.requires_grad or not weights:
            return
        if _checkpoints_reentrantly(loss):  # `torch.autograd.grad` does not work with this
            loss.backward(**options)  # type: ignore[no-untyped-call]
            found = [weight.grad for weight in weights]
        else:
            # `torch.autograd.grad` returns the gradients and stores none. So it runs no hook of DDP, and no optimizer
            # that steps during backward.
            keep = {name: options[name] for name in ("retain_graph", "create_graph") if name in options}
            found = list(torch.autograd.grad(loss, weights, allow_unused=True, **keep))
        for name, gradient in zip(names, found):
            if gradient is not None:
                self.grads[name] = gradient


def _checkpoints_reentrantly(loss: torch.Tensor) -> bool:
    """Return whether the forward of a loss used activation checkpointing of torch with `use_reentrant=True`."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            return True
        waiting.extend(each for each, _ in node.next_functions)
    return False
