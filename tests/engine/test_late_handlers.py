"""A handler that is attached during the run gets the same parameters as an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.trainers import regression_trainer


@pytest.mark.parametrize("event", ["on_step_end", "on_substep_end", "on_loss"])
def test_outputs_reach_a_handler_that_is_attached_during_the_run(event: str, tmp_path: Path) -> None:
    run = regression_trainer(tmp_path, args={"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2})
    seen: list[Any] = []
    run.on("on_step_begin", lambda: run.on(event, lambda outputs: seen.append(outputs)), once=3)
    run.train()
    assert len(seen) >= 8
    assert all("logits" in outputs for outputs in seen)


def test_outputs_are_dropped_once_no_handler_names_them(tmp_path: Path) -> None:
    run = regression_trainer(tmp_path)
    seen: list[Any] = []
    handle = run.on("on_step_end", lambda outputs: None)
    run.on("on_step_end", lambda run: seen.append(run.outputs is None), id="later")
    run.on("on_step_begin", lambda: handle(), once=3)
    run.train()
    assert seen[:4] == [False, False, True, True]
