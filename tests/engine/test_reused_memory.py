"""Evaluations of models that write each loss, or each output, into the memory of the one before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import trainbus
from trainbus.engine.data.collators.default import makes_new_tensors

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


def losses_of(model: Callable[[], nn.Module], folder: Path) -> list[float]:
    """Return the `eval_loss` of trainbus and of transformers, each with a new model."""
    losses = []
    libraries: tuple[Any, ...] = (trainbus, transformers)
    for library in libraries:
        args = library.TrainingArguments(
            str(folder), per_device_eval_batch_size=5, report_to=[], use_cpu=True, disable_tqdm=True
        )
        losses.append(library.Trainer(model(), args, eval_dataset=SAMPLES).evaluate()["eval_loss"])
    return losses


@pytest.mark.parametrize("reuses", ["nothing", "memory", "object"])
def test_the_loss_equals_the_loss_of_transformers(reuses: str, tmp_path: Path) -> None:
    losses = losses_of(lambda: Reusing(reuses), tmp_path)
    assert losses[0] == losses[1] == pytest.approx(0.7451987862586975)


class ReusingOutputs(Reusing):
    """Returns its logits in memory that the next call overwrites: plain, in a tuple, or nested."""

    def __init__(self, form: str) -> None:
        super().__init__("nothing")
        self.form = form
        self.memory = torch.zeros(3, 5, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        outputs: dict[str, Any] = super().forward(x, labels)
        if self.form == "fresh":
            return outputs
        self.calls += 1
        place = self.calls % 3 if self.form == "three" else 0
        logits = self.memory[place, : len(x)].copy_(outputs["logits"].detach())
        forms = {
            **{"plain": logits, "three": logits, "dict": {"scores": logits}},
            **{"tuple": (logits, logits[:, :1]), "partly fresh": (logits, logits.clone())},
        }
        return {"loss": outputs["loss"], "logits": forms[self.form]}


def first_array(predictions: Any) -> np.ndarray:
    while not isinstance(predictions, np.ndarray):
        predictions = next(iter(predictions.values())) if isinstance(predictions, dict) else predictions[0]
    return predictions


@pytest.mark.parametrize("args", [{}, {"eval_accumulation_steps": 1}, {"eval_accumulation_steps": 3}], ids=str)
@pytest.mark.parametrize("form", ["plain", "three", "dict", "tuple", "partly fresh"])
def test_predictions_keep_the_values_of_each_batch(form: str, args: dict[str, Any], tmp_path: Path) -> None:
    found = {}
    for each in ("fresh", form):
        said = trainbus.TrainingArguments(str(tmp_path), per_device_eval_batch_size=5, report_to=[], **args)
        trainer = trainbus.Trainer(ReusingOutputs(each), said)
        found[each] = first_array(trainer.predict(SAMPLES).predictions)
    assert np.array_equal(found["fresh"], found[form])
    assert len(np.unique(found[form], axis=0)) == len(SAMPLES)


@pytest.mark.parametrize("concat", [True, False])
def test_a_later_call_of_the_model_changes_no_predictions(concat: bool, tmp_path: Path) -> None:
    args = trainbus.TrainingArguments(
        str(tmp_path), per_device_eval_batch_size=5, report_to=[], eval_do_concat_batches=concat
    )
    trainer = trainbus.Trainer(ReusingOutputs("plain"), args)
    first = trainer.predict(SAMPLES[:5]).predictions
    first = first if concat else first[0]
    before = first.copy()
    trainer.predict(SAMPLES[5:10])
    assert np.array_equal(first, before)


@pytest.mark.parametrize("own", [False, True])
def test_labels_keep_the_values_of_each_batch(own: bool, tmp_path: Path) -> None:
    memory, calls = torch.zeros(3, 5, dtype=torch.long), []

    def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        # The loader fetches one batch ahead, so a collator needs at least two places in memory.
        calls.append(len(samples))
        labels = memory[len(calls) % 3, : len(samples)]
        labels.copy_(torch.stack([sample["labels"] for sample in samples]))
        return {"x": torch.stack([sample["x"] for sample in samples]), "labels": labels}

    collator = trainbus.DefaultDataCollator() if own else collate
    assert makes_new_tensors(collator) == own
    args = trainbus.TrainingArguments(str(tmp_path), per_device_eval_batch_size=5, report_to=[])
    trainer = trainbus.Trainer(Reusing("nothing"), args, data_collator=collator)
    assert trainer.predict(SAMPLES).label_ids.tolist() == [sample["labels"].item() for sample in SAMPLES]
    assert len(calls) == (0 if own else 8)


class MixedLosses(Reusing):
    """Returns losses of other types at chosen calls."""

    def __init__(self, types: tuple[torch.dtype, ...]) -> None:
        super().__init__("nothing")
        self.types = types
        self.calls = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = super().forward(x, labels)
        outputs["loss"] = outputs["loss"].to(self.types[self.calls % len(self.types)])
        self.calls += 1
        return outputs


@pytest.mark.parametrize(
    "types",
    [
        (torch.float32, torch.float16),
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
        (torch.float16,),
        (torch.float64,),
    ],
    ids=str,
)
def test_losses_of_several_types(types: tuple[torch.dtype, ...], tmp_path: Path) -> None:
    losses = losses_of(lambda: MixedLosses(types), tmp_path)
    assert losses[0] == losses[1]
