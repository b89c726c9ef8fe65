"""An evaluation inside another one, or of other data, leaves the decisions of the run to its own evaluations."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import timeless
from support.trainers import Fresh, both, regression_trainer
from trainbus import Callback, Checkpoint, EarlyStopping, Evaluate, Keep, KeepBest, every

EVENTS = ("on_evaluate_begin", "on_evaluate_dataset", "on_evaluate", "on_evaluate_end")


class AlsoEvaluate(Callback):
    """Evaluates other data inside an evaluation, once per evaluation."""

    def __init__(self, event: str, prefix: str) -> None:
        self.event, self.prefix, self.inside = event, prefix, False
        self.inner: list[dict[str, Any]] = []
        setattr(self, event, self.handle)

    def handle(self, run: Any) -> None:
        if self.inside:
            return
        self.inside = True
        data = points(8, seed=5)
        self.inner.append(run.evaluate(eval_dataset=data, metric_key_prefix=self.prefix))
        self.inside = False


def worse(number: int) -> Any:
    """Return `compute_metrics` that tells the run's own data (12 rows) from other data, where it only improves."""
    calls = {8: 0, 12: 0}

    def measure(prediction: Any) -> dict[str, float]:
        rows = len(prediction.predictions)
        calls[rows] += 1
        return {"score": float(calls[rows]) if rows == 8 else -abs(calls[rows] - number)}

    return measure


def run_of(folder: Path, *callbacks: Any, **args: Any) -> Any:
    defaults = {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 0.05,
    }
    if not any(isinstance(callback, Checkpoint) for callback in callbacks):
        defaults["save_strategy"] = "no"
    return trainbus.Trainer(
        Regression(),
        trainbus.TrainingArguments(str(folder), **{**defaults, **args}),
        train_dataset=points(20),
        eval_dataset=points(12, seed=1),
        compute_metrics=worse(3),
        callbacks=[Evaluate(every(1)), *callbacks],
    )


@pytest.mark.parametrize("prefix", ["eval", "train"])
@pytest.mark.parametrize("event", EVENTS)
def test_an_inner_evaluation_changes_no_decision(event: str, prefix: str, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    for name in ("plain", "nested"):
        inner = [AlsoEvaluate(event, prefix)] if name == "nested" else []
        heard: list[dict[str, Any]] = []
        run = run_of(
            tmp_path / name,
            *inner,
            Checkpoint(every(1), keep=Keep(last=1, best=1)),
            KeepBest("score", mode="max"),
            EarlyStopping("score", patience=3, mode="max"),
        )
        run.on("on_evaluate_end", lambda metrics, heard=heard: heard.append(timeless(metrics)))
        run.train()
        best = run.state.best_model_checkpoint
        saved = {
            path.name: timeless(json.loads((path / "manifest.json").read_text())["metrics"])
            for path in sorted((tmp_path / name).glob("checkpoint-*"))
        }
        own = [each["eval_score"] for each in heard if each.get("eval_score", 1) <= 0]
        seen[name] = (run.state.global_step, run.state.best_metric, run.state.best_global_step, Path(best).name, own)
        scores = {folder: metrics["eval_score"] for folder, metrics in saved.items()}
        seen[name] += (scores,)
    assert seen["nested"] == seen["plain"]
    assert seen["plain"][:3] == (6, 0.0, 3)


@pytest.mark.parametrize("event", EVENTS)
def test_evaluate_returns_its_own_metrics(event: str, tmp_path: Path) -> None:
    plain = run_of(tmp_path).evaluate()
    also = AlsoEvaluate(event, "eval")
    nested = run_of(tmp_path, also).evaluate()
    assert timeless(nested) == timeless(plain)
    assert len(also.inner) == 1
    assert also.inner[0]["eval_loss"] != nested["eval_loss"]


def test_a_prediction_inside_an_evaluation_leaves_its_record(tmp_path: Path) -> None:
    run = run_of(tmp_path, KeepBest("score", mode="max"), EarlyStopping("score", patience=3, mode="max"))
    run.on("on_evaluate", lambda: run.predict(points(8, seed=5)))
    run.train()
    assert (run.state.global_step, run.state.best_global_step) == (6, 3)


def test_other_data_between_evaluations_change_no_decision(tmp_path: Path) -> None:
    stop = EarlyStopping("score", patience=3, mode="max")
    run = run_of(tmp_path, KeepBest("score", mode="max"), Checkpoint(every(1)), stop)
    run.on("on_step_end", lambda run: run.evaluate(eval_dataset=points(8, seed=5)))
    run.train()
    assert (run.state.global_step, run.state.best_global_step) == (6, 3)


def test_metrics_of_other_data_decide_under_their_own_names(tmp_path: Path) -> None:
    run = run_of(tmp_path, EarlyStopping("train_score", patience=2, mode="min"))

    def also(run: Any) -> None:
        if run.dataset_name != "train":
            run.evaluate(eval_dataset={"train": points(8, seed=5)})

    run.on("on_evaluate", also)
    run.train()
    assert run.state.global_step == 3


def test_a_trainer_without_eval_dataset_decides_from_evaluations_of_handlers(tmp_path: Path) -> None:
    run = regression_trainer(
        tmp_path, callbacks=[EarlyStopping("eval_loss", patience=1, threshold=9.0)], args={"max_steps": 6}
    )
    run.on("on_step_end", lambda run: run.evaluate(eval_dataset=points(8, seed=5)))
    run.train()
    assert run.state.global_step == 2


def test_a_checkpoint_holds_the_metrics_of_all_evaluations_of_its_step(tmp_path: Path) -> None:
    hard = Evaluate(every(1), dataset=points(8, seed=5), name="hard")
    run = run_of(tmp_path, hard, Checkpoint(every(1)), max_steps=2)
    run.train()
    manifest = json.loads((tmp_path / "checkpoint-2" / "manifest.json").read_text())
    assert {"eval_score", "eval_hard_score"} <= manifest["metrics"].keys()


def test_the_recipe_of_transformers_gives_the_same_run(tmp_path: Path) -> None:
    def callbacks(library: Any) -> list[Any]:
        class AlsoTheTrainingSet(library.TrainerCallback):
            trainer: Any = None

            def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
                if control.should_evaluate:
                    kept = copy.deepcopy(control)
                    self.trainer.evaluate(eval_dataset=self.trainer.train_dataset, metric_key_prefix="train")
                    return kept
                return None

        return [AlsoTheTrainingSet(), library.EarlyStoppingCallback(1, 0.05)]

    def train(run: Any) -> None:
        for callback in run.callback_handler.callbacks if hasattr(run, "callback_handler") else []:
            if type(callback).__name__ == "AlsoTheTrainingSet":
                callback.trainer = run
        run.train()

    args = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "num_train_epochs": 8,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.05,
    }
    data = {"train_dataset": points(20), "eval_dataset": points(12, seed=1)}
    (theirs, _), (ours, _) = both(
        tmp_path,
        args,
        train,
        lambda: Regression(),
        callbacks,
        **{name: Fresh(lambda v=v: v) for name, v in data.items()},
    )
    assert transformers.Trainer is type(theirs)
    assert ours.state.global_step == theirs.state.global_step
    assert ours.state.best_metric == theirs.state.best_metric
    assert [timeless(entry) for entry in ours.state.log_history if "train_loss" not in entry or "eval_loss" in entry]
    evaluations = [
        [timeless(entry) for entry in run.state.log_history if "eval_loss" in entry or "train_runtime" in entry]
        for run in (ours, theirs)
    ]
    names = [[(entry["step"], entry["eval_loss"]) for entry in each if "eval_loss" in entry] for each in evaluations]
    assert names[0] == names[1]
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters()):
        assert torch.equal(mine, other)
