"""Evaluations with `Metrics` of a model whose outputs are its inputs, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.data import Stream
from support.outcomes import timeless
from trainbus import Metrics, Trainer, TrainingArguments


class Outputs(nn.Module):
    """A model whose logits are in the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> Any:
        return {"loss": (self.weight * logits).mean(), "logits": logits}


def rows_of(logits: Any, labels: Any) -> list[dict[str, Any]]:
    """Return samples for `Outputs`."""
    return [
        {"logits": row, "labels": label} for row, label in zip(torch.as_tensor(logits).float(), torch.as_tensor(labels))
    ]


def measured(folder: Path | str) -> dict[str, dict[str, float]]:
    """Return the metrics of 11 rows of tokens, from a list and from a stream."""
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(11, 5, 3, generator=generator), torch.randint(-1, 3, (11, 5), generator=generator)
    rows = rows_of(logits, labels.where(labels >= 0, -100))
    metrics = Metrics(
        "accuracy",
        Metrics("f1", average="macro"),
        Metrics("perplexity", "top_k_accuracy", k=2, shift=True),
        Metrics("seqeval", label_names=["O", "B-PER", "I-PER"]),
    )
    args = TrainingArguments(
        str(folder), use_cpu=True, per_device_eval_batch_size=2, ddp_timeout=60, disable_tqdm=True, report_to="none"
    )
    sets = {"list": rows, "stream": Stream(rows)}
    found = {
        name: Trainer(Outputs(), args, eval_dataset=each, compute_metrics=metrics).evaluate()
        for name, each in sets.items()
    }
    return {name: timeless(values) for name, values in found.items()}
