"""Noise on the embeddings in training: NEFTune."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError, nearest
from ...events.stages import Stage


def noisy(embedded: torch.Tensor, alpha: float) -> torch.Tensor:
    """Add uniform noise to embeddings of shape (batch, length, width), of size alpha / sqrt(length * width).

    Jain et al., arXiv:2310.05914. The operations are those of transformers, so that the draws are too.
    """
    size = alpha / torch.sqrt(torch.tensor(embedded.size(1) * embedded.size(2)))
    return embedded + torch.zeros_like(embedded).uniform_(-size, size)  # type: ignore[arg-type]  # a tensor will do


@dataclass
class NEFTune(Callback):
    """Adds noise to the model's input embeddings while it trains; evaluations and the saved model have none."""

    stage = Stage.PREPARE
    arguments = ("neftune_noise_alpha",)

    alpha: float = 5.0
    """How strong the noise is; about 5 to 15."""
    embedding: str | None = None
    """Which module's output it is added to, by its name; by default what the model's `get_input_embeddings` returns."""
    _hook: RemovableHandle | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ArgumentError(f"NEFTune(alpha={self.alpha}): the strength is a number, 0 or more.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> NEFTune | None:
        return None if args.neftune_noise_alpha is None else cls(args.neftune_noise_alpha)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._hook = input_embeddings(run.model, self.embedding).register_forward_hook(self._add)

    def _add(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return noisy(output, self.alpha) if module.training else output

    def on_close(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()


def input_embeddings(model: Any, name: str | None = None) -> nn.Module:
    """Return the embedding of a model's input: the one of that name, what it says itself, or its only `nn.Embedding`.

    Raises:
        ModelError: if there is none of that name, or without a name, none or several.
    """
    if name is not None:
        modules: dict[str, nn.Module] = dict(model.named_modules())
        if name not in modules:
            raise ModelError(f"{type(model).__name__} has no module {name!r}{nearest(name, modules)}")
        return modules[name]
    if hasattr(model, "get_input_embeddings"):
        embedding: nn.Module = model.get_input_embeddings()
        return embedding
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    if len(found) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        raise ModelError(
            f"{type(model).__name__} does not say which module embeds its input (its nn.Embedding: {names}): give it a "
            'method get_input_embeddings, or name the module, NEFTune(embedding="tokens").'
        )
    return found[0][1]
