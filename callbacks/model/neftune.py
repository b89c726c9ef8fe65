"""NEFTune: noise on the input embeddings during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError, nearest
from ...events.stages import Stage
from ..base.module_changes import hook_forward


def noisy(embedded: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return the embeddings plus uniform noise in +-alpha / sqrt(length * width).

    Source: Jain et al., arXiv:2310.05914. The operations and the random draws are the same as in transformers.

    Args:
        embedded: the embeddings, of shape (batch, length, width).
        alpha: the strength of the noise.
    """
    size = alpha / torch.sqrt(torch.tensor(embedded.size(1) * embedded.size(2)))
    return embedded + torch.zeros_like(embedded).uniform_(-size, size)  # type: ignore[arg-type]  # a tensor works too


@dataclass
class NEFTune(Callback):
    """Adds noise to the input embeddings during training. The noise can improve instruction fine-tuning.

    Set `neftune_noise_alpha=5`, or add `NEFTune(alpha=10, embedding="tokens")` to the callbacks. The callback adds no
    noise in evaluations and does not change the saved model.

    Raises:
        ArgumentError: if `alpha` is negative or not finite.
        ModelError: if the callback cannot find the embedding module.
    """

    stage = Stage.PREPARE
    arguments = ("neftune_noise_alpha",)

    alpha: float = 5.0
    """The strength of the noise, usually 5 to 15. The noise is uniform in +-alpha / sqrt(length * width)."""
    embedding: str | None = None
    """The name of the embedding module. Default: `get_input_embeddings()` of the model. A model without this method
    must have exactly one `nn.Embedding`."""
    _unhook: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ArgumentError(f"NEFTune(alpha={self.alpha}): set a finite number of 0 or more.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> NEFTune | None:
        return None if args.neftune_noise_alpha is None else cls(args.neftune_noise_alpha)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._unhook = hook_forward(input_embeddings(run.model, self.embedding), self._add)

    def _add(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return noisy(output, self.alpha) if module.training else output

    def on_close(self) -> None:
        unhook, self._unhook = self._unhook, None
        if unhook is not None:
            unhook()


def input_embeddings(model: Any, name: str | None = None) -> nn.Module:
    """Return the module that embeds the input of a model.

    Args:
        model: the model.
        name: the name of the module. None: the result of the model's method `get_input_embeddings()`. A model without
            this method must have exactly one `nn.Embedding`.

    Raises:
        ModelError: if the model has no module of this name. Without a name: if the model has neither
            `get_input_embeddings()` nor exactly one `nn.Embedding`.
    """
    if name is not None:
        modules: dict[str, nn.Module] = dict(model.named_modules())
        if name not in modules:
            raise ModelError(
                f"{type(model).__name__} has no module {name!r}{nearest(name, modules)} Correct NEFTune(embedding=...)."
            )
        return modules[name]
    if hasattr(model, "get_input_embeddings"):
        embedding: nn.Module = model.get_input_embeddings()
        return embedding
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    if len(found) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        raise ModelError(
            f"The input embedding of {type(model).__name__} is not known (its nn.Embedding: {names}). Add a method "
            'get_input_embeddings to the model, or name the module: NEFTune(embedding="tokens").'
        )
    return found[0][1]
