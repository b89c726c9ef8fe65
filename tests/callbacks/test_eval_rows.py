"""Evaluations on a random subset of rows, and the confidence interval of their mean loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.callbacks import stop_at
from support.data import Stream, points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.processes import run_on_two
from support.trainers import regression_trainer
from trainbus import EarlyStopping, Evaluate, KeepBest, Trainer, TrainingArguments, every
from trainbus.engine.evaluation.row_slice import half_width, slice_of
from trainbus.events.errors import ArgumentError

DATA = points(200, seed=1)
OPTIONS = {"max_steps": 6, "per_device_eval_batch_size": 8}
SAVING = {"save_strategy": "steps", "save_steps": 1}


def slicing(folder: Path, *callbacks: Any, args: dict[str, Any] | None = None, **options: Any) -> tuple[Any, list]:
    """Return a trainer and the labels of each of its evaluations."""
    seen: list[list[float]] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.label_ids.tolist())
        return {"bias": float((prediction.predictions - prediction.label_ids).mean())}

    options = {"eval_dataset": DATA, "compute_metrics": metrics, "callbacks": list(callbacks), **options}
    return regression_trainer(folder, args={**OPTIONS, **(args or {})}, **options), seen


def evaluations(trainer: Any) -> list[dict[str, Any]]:
    return [log for log in trainer.state.log_history if any(name.startswith("eval_") for name in log)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list]:
    """A trainer after a training with three evaluations on 50 rows, and the labels of each evaluation."""
    trainer, seen = slicing(tmp_path_factory.mktemp("unbroken"), Evaluate(every(2), rows=50))
    trainer.train()
    return trainer, seen


def test_every_evaluation_has_the_same_random_rows_and_the_last_has_all(unbroken):
    seen = unbroken[1][:4]
    every_label = [float(row["labels"]) for row in DATA]
    assert [len(labels) for labels in seen] == [50, 50, 50, 200]
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 50
    assert set(seen[0]) <= set(every_label)
    assert seen[0] != every_label[:50]
    assert seen[3] == every_label


def test_the_logs_have_the_usual_names_and_the_interval(unbroken):
    *sliced, full = evaluations(unbroken[0])[:4]  # other tests evaluate again
    assert [log["step"] for log in sliced] == [2, 4, 6]
    assert all(log.keys() == full.keys() | {"eval_loss_ci"} for log in sliced)
    assert full["step"] == 6
    assert "eval_loss_ci" not in full
    assert abs(full["eval_loss"] - sliced[-1]["eval_loss"]) < 2 * sliced[-1]["eval_loss_ci"]


def test_the_interval_is_that_of_numpy(tmp_path: Path):
    """Batches of 8, 8, 8 and 6 rows, with a loop of its own and the formula in numpy."""
    trainer, seen = slicing(tmp_path, Evaluate(every(6), rows=30))
    trainer.train()
    log = evaluations(trainer)[0]
    row_of = {float(row["labels"]): row for row in DATA}
    rows = [row_of[label] for label in seen[0]]
    parts = [rows[start : start + 8] for start in range(0, 30, 8)]
    with torch.no_grad():
        losses = [trainer.model(**{key: torch.stack([row[key] for row in part]) for key in part[0]}) for part in parts]
    means = np.array([float(loss["loss"]) for loss in losses])
    sizes = np.array([len(part) for part in parts])
    assert log["eval_loss"] == pytest.approx(np.average(means, weights=sizes))
    middle = np.average(means, weights=sizes)
    expected = 1.96 * np.sqrt(np.sum(sizes * (means - middle) ** 2) / (3 * 30))
    assert log["eval_loss_ci"] == pytest.approx(expected, rel=1e-4)


def test_equal_batches_give_the_standard_error_of_their_mean():
    means = np.random.default_rng(0).normal(size=25)
    expected = 1.96 * means.std(ddof=1) / 5
    assert half_width(means.repeat(4), 4) == pytest.approx(expected, rel=1e-4)
    assert half_width(means, 1) == pytest.approx(expected, rel=1e-4)
    assert half_width(means[:1].repeat(4), 4) is None


def test_the_interval_covers_the_mean_of_all_rows_in_95_of_100_draws():
    losses = np.random.default_rng(0).exponential(size=20_000)  # a skewed distribution
    covered = 0
    for seed in range(400):
        drawn = losses[slice_of(range(20_000), 802, seed).indices]
        batches = [drawn[start : start + 8] for start in range(0, 802, 8)]  # the last has two rows
        rows = np.concatenate([np.full(len(batch), batch.mean()) for batch in batches])
        covered += abs(rows.mean() - losses.mean()) <= half_width(rows, 8)
    assert 0.92 < covered / 400 < 0.98


def test_the_argument_does_the_same(tmp_path: Path, unbroken):
    built, seen = slicing(tmp_path, args={"eval_strategy": "steps", "eval_steps": 2, "eval_rows": 50})
    built.train()
    assert seen == unbroken[1][:4]


@pytest.mark.parametrize("settings", [{"seed": 7}, {"data_seed": 7}])
def test_the_seed_decides_the_rows(settings: dict[str, int]):
    args = TrainingArguments("unused", eval_rows=50, **settings)
    built = Trainer(Regression(), args, eval_dataset=DATA)
    assert built._slice(DATA, 50).indices == slice_of(DATA, 50, 7).indices != slice_of(DATA, 50, 8).indices


def test_evaluate_and_the_loader_of_the_user_have_all_rows(unbroken):
    trainer, seen = unbroken
    assert "eval_loss_ci" not in trainer.evaluate()
    assert len(seen[-1]) == len(trainer.get_eval_dataloader().dataset) == 200


def test_a_resumed_run_evaluates_the_same_rows(tmp_path: Path, unbroken):
    whole, _ = unbroken
    broken, _ = slicing(tmp_path, Evaluate(every(2), rows=50), args=SAVING)
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed, seen = slicing(tmp_path, Evaluate(every(2), rows=50))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert seen == unbroken[1][1:4]
    assert same_weights(weights(resumed.model), weights(whole.model))
    wanted = ("eval_loss", "eval_loss_ci", "eval_bias")
    assert [[log.get(name) for name in wanted] for log in evaluations(resumed)[-3:]] == [
        [log.get(name) for name in wanted] for log in evaluations(whole)[1:4]
    ]


def test_the_slice_does_not_change_the_training(tmp_path: Path, unbroken):
    plain, _ = slicing(tmp_path, args={"eval_strategy": "no"})
    plain.train()
    assert same_weights(weights(plain.model), weights(unbroken[0].model))


def test_several_datasets_and_an_own_one(tmp_path: Path):
    sets = {"near": DATA, "short": points(5, seed=2)}
    own = Evaluate(every(6), dataset=points(60, seed=3), name="own", rows=24)
    trainer, seen = slicing(tmp_path, Evaluate(every(6), rows=16), own, eval_dataset=sets)
    trainer.train()
    assert [len(labels) for labels in seen] == [16, 5, 24, 200, 5, 60]
    logs = evaluations(trainer)
    assert [name for log in logs for name in log if name.endswith("_loss_ci")] == [
        "eval_near_loss_ci",
        "eval_own_loss_ci",
    ]


def test_the_best_model_and_early_stopping_use_the_slice(tmp_path: Path):
    best = KeepBest("eval_loss", load_at_end=True)
    stopping = EarlyStopping("eval_loss", patience=1, threshold=100.0)
    trainer, seen = slicing(tmp_path, Evaluate(every(1), rows=50), best, stopping, args=SAVING)
    trainer.train()
    *sliced, full = evaluations(trainer)
    assert len(sliced) == len(seen) - 1 < 6
    assert trainer.state.best_metric == min(log["eval_loss"] for log in sliced) != full["eval_loss"]
    assert full["eval_loss"] == trainer.evaluate()["eval_loss"], "the evaluation of all rows has the best weights"


def test_an_evaluation_inside_of_an_evaluation_has_all_rows(tmp_path: Path):
    trainer, seen = slicing(tmp_path, Evaluate(every(6), rows=16))
    other = points(30, seed=4)
    handle = trainer.on("on_evaluate", lambda: (handle(), trainer.evaluate(other, metric_key_prefix="other")))
    trainer.train()
    assert [len(labels) for labels in seen] == [16, 30, 200]


def test_persistent_workers_keep_both_loaders(tmp_path: Path):
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "max_steps": 4}
    trainer, seen = slicing(tmp_path, Evaluate(every(2), rows=16), args=workers)
    trainer.train()
    assert [len(labels) for labels in seen] == [16, 16, 200]
    assert seen[0] == seen[1]


def test_a_preview_shows_the_evaluations(tmp_path: Path):
    trainer, seen = slicing(tmp_path, Evaluate(every(2), rows=16))
    plan = str(trainer.preview())
    assert "evaluat" in plan
    assert seen == []


@pytest.mark.parametrize("rows", [0, -1, 2.5, True, "all"])
def test_no_number_of_rows_is_refused(rows: Any):
    with pytest.raises(ArgumentError, match="rows"):
        Evaluate(every(2), rows=rows)


def test_a_stream_is_refused(tmp_path: Path):
    trainer, _ = slicing(tmp_path, Evaluate(every(2), rows=16), eval_dataset=Stream(DATA))
    with pytest.raises(ArgumentError, match=r"Stream is a stream.*limit_eval_batches"):
        trainer.train()


def test_an_override_that_ignores_the_slice_is_refused(tmp_path: Path):
    trainer, _ = slicing(tmp_path, Evaluate(every(2), rows=16))
    loader = trainer.get_eval_dataloader()
    trainer.get_eval_dataloader = lambda eval_dataset=None: loader
    with pytest.raises(ArgumentError, match="loader of 200 rows"):
        trainer.train()


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_two_ranks_share_the_slice(tmp_path: Path):
    run_on_two(Path(__file__).with_name("eval_rows_program.py"), tmp_path, timeout=100)
    first, second = (json.loads((tmp_path / f"end-{rank}.json").read_text()) for rank in range(2))
    assert first == second
    data = points(40, seed=1)
    drawn = [float(data[row]["labels"]) for row in slice_of(data, 13, 42).indices]
    assert first["seen"] == [drawn, drawn, [float(row["labels"]) for row in data]]
    assert ["eval_loss_ci" in losses for losses in first["losses"]] == [True, True, False]
