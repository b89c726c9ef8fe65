"""Add a contrastive loss (InfoNCE, SimCSE). Two passes with different dropout masks are two views of a sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainbus import Callback, Run, Stage


def info_nce(one: torch.Tensor, other: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the InfoNCE loss (van den Oord et al., 2018) of two views, each of shape (samples, features)."""
    one, other = nn.functional.normalize(one, dim=-1), nn.functional.normalize(other, dim=-1)
    return nn.functional.cross_entropy(one @ other.T / temperature, torch.arange(len(one), device=one.device))


@dataclass
class Contrastive(Callback):
    """Adds a contrastive loss to the loss of the model. The model returns embeddings beside its loss."""

    stage = Stage.PREPARE

    weight: float = 0.1
    """The factor of the contrastive loss."""
    temperature: float = 0.05
    """The temperature: smaller values push hard negatives further away."""
    key: str = "embedding"
    """The name of the embeddings, of shape (samples, features), in the outputs of the model."""
    _loss: torch.Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def on_setup(self) -> None:
        self._loss = None

    def on_loss(self, run: Run, batch: dict[str, Any], loss: torch.Tensor, outputs: dict[str, torch.Tensor]) -> None:
        if self.key not in outputs:
            raise KeyError(f"The model returns no {self.key!r}, only {', '.join(outputs)}. Return it, or set `key`.")
        second = run.model_wrapped(**batch)[self.key]  # dropout makes another view of the same samples
        added = info_nce(outputs[self.key], second, self.temperature)
        run.loss = loss + self.weight * added
        self._loss = added.detach()

    def on_log(self, logs: dict[str, Any]) -> None:
        if "loss" in logs and self._loss is not None:
            logs["contrastive_loss"] = float(self._loss)

    def on_close(self) -> None:
        self._loss = None
