"""A filling of a seam that a step cannot use is refused: with the name of the callback, the seam and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.trainers import regression_trainer
from trainbus.engine.seams import Seams
from trainbus.events import SubscriptionError


def generator(model: Any) -> Any:
    yield model


@pytest.mark.parametrize(
    ("fillings", "message"),
    [
        ({"clip": 3}, "Mine fills the seam clip with 3, which is not a function"),
        ({"clip": lambda optimizer: None}, r"which must take the arguments \(optimizer, parameters, max_norm\)"),
        ({"prepare_model": generator}, "which is a generator"),
        ({"scaler": object()}, "which has no scale, unscale_"),
    ],
)
def test_a_filling_that_a_step_cannot_call_is_refused(fillings: dict[str, Any], message: str) -> None:
    with pytest.raises(SubscriptionError, match=message):
        Seams().fill("Mine", **fillings)


@pytest.mark.parametrize(
    "seam", ["prepare_model", "make_optimizer", "wrap_model", "synchronise", "train_batch", "step", "optimizer_state"]
)
def test_a_result_of_none_is_refused(seam: str, tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, args={"max_steps": 1, "save_strategy": "steps", "save_steps": 1})
    run.on("on_setup", lambda run: run.seams.fill("Mine", **{seam: lambda *arguments: None}))
    with pytest.raises(SubscriptionError, match=f"The function of Mine for the seam {seam} returned None. Return "):
        run.train()


@pytest.mark.parametrize("seam", ["prepare_model", "make_optimizer", "wrap_model", "make_schedule", "train_batch"])
def test_a_seam_that_the_run_called_already_is_refused(seam: str, tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, args={"max_steps": 1})
    run.on("on_train_begin", lambda run: run.seams.fill("Mine", **{seam: lambda *arguments: arguments[0]}))
    with pytest.raises(SubscriptionError, match=f"Mine fills the seam {seam} too late.*Fill it in `on_setup`"):
        run.train()


def test_a_callback_that_fills_a_seam_in_each_step_is_refused(tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, args={"max_steps": 2})
    run.on("on_step_end", lambda run: run.seams.fill("Mine", backward=lambda loss, **options: loss.backward()))
    with pytest.raises(SubscriptionError, match=r"Mine and Mine both fill the seam backward.*fill a seam once"):
        run.train()
