"""Evaluations of models that write each loss into the memory of the loss before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import trainbus

INPUTS = torch.randn(37, 4, generator=torch.Generator().manual_seed(0))
SAMPLES = [{"x": row, "labels": (row.sum() > 0).long()} for row in INPUTS]


class Reusing(nn.Module):
    """Returns its loss in a tensor that the next call of `forward` overwrites, as a CUDA graph does."""

    def __init__(self, reuses: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 2)
        self.reuses = reuses
        self.register_buffer("kept", torch.zeros(()))
        self.replaced = torch.zeros(())

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        loss = nn.functional.cross_entropy(logits, labels)
        if self.reuses == "memory":
            loss = self.kept.copy_(loss)
        elif self.reuses == "object":
            self.replaced.data = loss.detach()
            loss = self.replaced
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("reuses", ["nothing", "memory", "object"])
def test_the_loss_equals_the_loss_of_transformers(reuses: str, tmp_path: Path) -> None:
    losses = []
    libraries: tuple[Any, ...] = (trainbus, transformers)
    for library in libraries:
        args = library.TrainingArguments(
            str(tmp_path), per_device_eval_batch_size=5, report_to=[], use_cpu=True, disable_tqdm=True
        )
        losses.append(library.Trainer(Reusing(reuses), args, eval_dataset=SAMPLES).evaluate()["eval_loss"])
    assert losses[0] == losses[1] == pytest.approx(0.7451987862586975)
