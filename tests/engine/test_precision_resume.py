"""Half precision and scaled losses resume to the last bit, and a step that overflowed moves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.models import Regression
from support.outcomes import equal, history, same_weights, weights
from support.trainers import regression_trainer
from trainbus import Callback
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.events import CheckpointError

STEPS = 10


class Scaling(Callback):
    """Scales the loss on the CPU, as MixedPrecision does on a GPU, and lets chosen steps overflow."""

    def __init__(self, *overflows: int) -> None:
        self.overflows = overflows
        self.scales: list[tuple[int, float]] = []
        self.rates: list[float] = []

    def on_setup(self, run: Any) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        run.seams.fill("Scaling", scaler=self.scaler)

    def on_loss(self, run: Any, state: Any) -> None:
        if state.global_step + 1 in self.overflows:
            run.loss = run.loss * float("inf")

    def on_step_end(self, run: Any, state: Any) -> None:
        self.scales.append((state.global_step, self.scaler.get_scale()))
        self.rates.append(run.optimizer.param_groups[0]["lr"])


WAYS: dict[str, tuple[dict[str, Any], tuple[int, ...] | None]] = {
    "bf16 O1": ({"bf16": True}, None),
    "bf16 O2": ({"bf16": True, "fp16_opt_level": "O2"}, None),
    "scaled": ({}, ()),
    "scaled, with overflows": ({}, (3, 4, 8)),
    "scaled, bf16 O1": ({"bf16": True}, (4,)),
    "scaled, in accumulated steps": ({"gradient_accumulation_steps": 2}, (2, 7)),
}


def run_of(folder: Path, way: str, seed: int = 0, **changes: Any) -> Any:
    args, overflows = WAYS[way]
    callbacks = [] if overflows is None else [Scaling(*overflows)]
    every = {"max_steps": STEPS, "save_strategy": "no", "logging_strategy": "steps", "logging_steps": 2}
    args = {"use_cpu": True, **every, **args, **changes}
    return regression_trainer(folder, Regression(dropout=0.3, seed=seed), args=args, callbacks=callbacks)


def as_text(values: Any) -> str:
    """Values as text, since NaN, which an overflow logs, equals nothing."""
    return json.dumps(values, sort_keys=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_resume_at_every_step_is_exact_in_each_precision(way: str, tmp_path: Path):
    whole = run_of(tmp_path / "whole", way, save_strategy="steps", save_steps=1)
    whole.train()
    for step in range(1, STEPS):
        again = run_of(tmp_path / "again", way, seed=1)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert same_weights(weights(again.model), weights(whole.model)), step
        assert equal(again.optimizer.state_dict(), whole.optimizer.state_dict()), step
        assert equal(again.lr_scheduler.state_dict(), whole.lr_scheduler.state_dict()), step
        assert as_text(history(again)) == as_text(history(whole)), step
        assert again.state.steps_skipped == whole.state.steps_skipped
        if WAYS[way][1] is not None:
            mine, other = (run.callbacks["Scaling"] for run in (again, whole))
            assert mine.scaler.state_dict() == other.scaler.state_dict()
            assert mine.scales == other.scales[step:]


def test_the_state_of_the_scaler_is_in_the_checkpoint(tmp_path: Path):
    run = run_of(tmp_path, "scaled, with overflows", save_strategy="steps", save_steps=1)
    run.train()
    scaling = run.callbacks["Scaling"]
    for step, scale in scaling.scales:
        assert load_values(tmp_path / f"checkpoint-{step}" / "scaler.safetensors")["scale"] == scale
    assert len({scale for _, scale in scaling.scales}) > 2


def test_a_step_that_overflowed_counts_and_moves_neither_weights_nor_schedule(tmp_path: Path):
    """`global_step` counts batches that were learned from or not, as in transformers; `steps_skipped` the latter."""
    run = run_of(tmp_path, "scaled, with overflows", save_strategy="steps", save_steps=1)
    before: dict[int, Any] = {}
    run.on("on_step_end", lambda model, state: before.update({state.global_step: weights(model)}))
    run.train()
    rates = run.callbacks["Scaling"].rates
    for step in range(2, STEPS + 1):
        overflowed = step in (3, 4, 8)
        assert same_weights(before[step], before[step - 1]) == overflowed
        assert (rates[step - 1] == rates[step - 2]) == overflowed
    assert run.state.global_step == STEPS
    assert run.state.steps_skipped == 3
    assert run.lr_scheduler.last_epoch == STEPS - 3


def test_a_checkpoint_without_the_state_of_the_scaler_is_refused(tmp_path: Path):
    plain = regression_trainer(tmp_path, args={"max_steps": 2, "save_strategy": "steps", "save_steps": 1})
    plain.train()
    scaled = regression_trainer(tmp_path, args={"max_steps": 4}, callbacks=[Scaling()])
    with pytest.raises(CheckpointError, match=r"has no scaler\.safetensors, so the run cannot resume exactly"):
        scaled.train(resume_from_checkpoint=True)
