"""Metrics of any type: single numbers are converted, other values are refused by name before a checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, EarlyStopping, KeepBest, MetricSchedule, every
from trainbus.events import ArgumentError


def evaluating(folder: Path, value: Any, *callbacks: Any, **options: Any) -> Any:
    metrics = value if callable(value) else lambda prediction: {"score": value}
    options = {"eval_strategy": "steps", "eval_steps": 2, **options}
    return net_trainer(folder, Checkpoint(every(2)), *callbacks, compute_metrics=metrics, **options)


NUMBERS = {
    "numpy scalar": np.float32(0.5),
    "0-d array": np.array(0.5),
    "array of one": np.array([[0.5]]),
    "tensor": torch.tensor(0.5),
    "tensor of one": torch.tensor([0.5]),
    "bfloat16": torch.tensor(0.5, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS)
def test_a_single_number_of_any_type_is_a_number(value, tmp_path):
    run = evaluating(tmp_path, value, KeepBest("score"))
    run.train()
    found = [entry["eval_score"] for entry in run.state.log_history if "eval_score" in entry]
    assert found == [0.5] * 3
    assert all(type(each) is float for each in found)
    assert json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())["best_metric"] == 0.5


REFUSED = {
    "array": (np.zeros(3), r"'score' is a ndarray of shape \(3,\)"),
    "tensor": (torch.zeros(2, 2), r"'score' is a Tensor of shape \(2, 2\)"),
    "object": (object(), "'score' is a object"),
    "set": ({1}, "'score' is a set"),
    "nested": ({"per_class": np.zeros(2)}, r"'score' is a ndarray of shape \(2,\)"),
    "list": ([np.zeros(2)], r"'score' is a ndarray of shape \(2,\)"),
}


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_other_values_are_refused_by_name(value, text, tmp_path):
    with pytest.raises(ArgumentError, match=text):
        evaluating(tmp_path, value).train()


def test_names_that_are_no_text_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="5 is a name of type int"):
        evaluating(tmp_path, lambda prediction: {5: 0.5}).evaluate()


@pytest.mark.parametrize("reader", [KeepBest("score"), EarlyStopping("score"), MetricSchedule("score")])
@pytest.mark.parametrize("value", [None, "0.5", [0.5]])
def test_a_decision_from_something_else_than_a_number_is_an_error(reader, value, tmp_path):
    run = evaluating(tmp_path, value, reader, lr_scheduler_type="reduce_lr_on_plateau")
    with pytest.raises(ArgumentError, match=rf"{type(reader).__name__} reads the metric 'eval_score'.*Return a number"):
        run.train()


def test_nan_is_never_the_best(tmp_path):
    values = [math.nan, 0.5, math.nan]
    run = evaluating(tmp_path, lambda prediction: {"score": values.pop(0)}, KeepBest("score"))
    run.train()
    assert (run.state.best_metric, run.state.best_global_step) == (0.5, 4)


class LogsThings(Callback):
    """Logs and measures values that JSON cannot hold, and sets a number of numpy on the state."""

    def on_step_end(self, run: Any) -> None:
        run.log({"histogram": np.zeros(3), "norm": torch.tensor(2.0)})
        run.state.total_flos = np.float64(3.0)

    def on_evaluate_dataset(self, metrics: dict[str, Any]) -> None:
        metrics["eval_table"] = torch.zeros(2)
        metrics["eval_extra"] = np.float32(1.0)


def test_values_that_checkpoints_cannot_hold_reach_handlers_but_not_the_history(tmp_path, caplog):
    seen: list[dict[str, Any]] = []
    run = evaluating(tmp_path, 0.5, LogsThings())
    run.on("on_log", lambda logs: seen.append(dict(logs)), id="sees")
    run.train()
    assert any("histogram" in logs for logs in seen)
    assert caplog.text.count("'histogram' is a ndarray of shape (3,)") == 1
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert [entry["norm"] for entry in state["log_history"] if "norm" in entry] == [2.0] * 6
    assert state["total_flos"] == 3.0
    manifest = json.loads((tmp_path / "checkpoint-6" / "manifest.json").read_text())
    assert manifest["metrics"]["eval_extra"] == 1.0
    assert "eval_table" not in manifest["metrics"]
