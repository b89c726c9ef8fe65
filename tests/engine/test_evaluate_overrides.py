"""An overridden `evaluate`: the best model, early stopping and schedules follow what it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.trainers import hushed

F1 = [0.1, 0.7, 0.5, 0.4, 0.9]
"""What each evaluation measures: the second is the best before patience ends."""


class AddsAMetric:
    """Adds a metric to what `evaluate` returns, after its callbacks ran."""

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        metrics["eval_f1"] = F1[self.state.global_step // 2 - 1]
        return metrics


class OwnLoop:
    """Evaluates, logs and announces by itself, as the question answering example of transformers does."""

    def evaluate(self, eval_dataset=None, eval_examples=None, ignore_keys=None, metric_key_prefix: str = "eval"):
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        output = self.evaluation_loop(self.get_eval_dataloader(dataset), "Evaluation", True, ignore_keys)
        metrics = {"f1": F1[self.state.global_step // 2 - 1]}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        metrics.update(output.metrics)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class Heir(AddsAMetric):
    """Overrides an override."""

    def evaluate(self, *args, **kwargs):
        return dict(super().evaluate(*args, **kwargs))


class OnlyAnnounces(OwnLoop):
    """Returns nothing."""

    def evaluate(self, *args, **kwargs):
        super().evaluate(*args, **kwargs)


ARGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 10,
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 2,
    "logging_steps": 2,
    "learning_rate": 1e-2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "f1",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def trained(library: Any, mixin: type, folder: Path, early: int | None = None, **args: Any) -> Any:
    with hushed():
        given = library.TrainingArguments(str(folder / library.__name__), **{**ARGS, **args})
        cls = type(mixin.__name__, (mixin, library.Trainer), {})
        trainer = cls(model=bert(), args=given, train_dataset=sentences(22), eval_dataset=sentences(6, seed=1))
        if early is not None:
            trainer.add_callback(library.EarlyStoppingCallback(early))
        trainer.train()
    return trainer


@pytest.mark.parametrize("mixin", [AddsAMetric, OwnLoop, Heir])
def test_best_model_is_that_of_transformers(mixin: type, tmp_path: Path) -> None:
    theirs, ours = (trained(library, mixin, tmp_path, max_steps=6) for library in (transformers, trainbus))
    assert (ours.state.best_metric, ours.state.best_global_step) == (0.7, 4)
    assert (theirs.state.best_metric, theirs.state.best_global_step) == (0.7, 4)
    assert Path(ours.state.best_model_checkpoint).name == "checkpoint-4"
    assert same_weights(weights(theirs.model), weights(ours.model))


def test_early_stopping_follows_an_evaluation_that_announces_itself(tmp_path: Path) -> None:
    theirs, ours = (trained(library, OwnLoop, tmp_path, early=2) for library in (transformers, trainbus))
    assert ours.state.global_step == theirs.state.global_step == 8
    assert same_weights(weights(theirs.model), weights(ours.model))


@pytest.mark.parametrize("mixin", [AddsAMetric, OnlyAnnounces])
def test_early_stopping_reads_returned_and_logged_metrics(mixin: type, tmp_path: Path) -> None:
    assert trained(trainbus, mixin, tmp_path, early=2).state.global_step == 8


@pytest.mark.parametrize("mixin", [AddsAMetric, OwnLoop])
def test_schedule_that_reads_a_metric_follows_it(mixin: type, tmp_path: Path) -> None:
    given = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "mode": "max"}}
    theirs, ours = (trained(library, mixin, tmp_path, **given) for library in (transformers, trainbus))
    assert [group["lr"] for group in ours.optimizer.param_groups] == [
        group["lr"] for group in theirs.optimizer.param_groups
    ]
    assert ours.optimizer.param_groups[0]["lr"] < ARGS["learning_rate"]
    assert same_weights(weights(theirs.model), weights(ours.model))


def test_evaluation_of_an_override_ends_once(tmp_path: Path) -> None:
    ended: list[dict[str, Any]] = []

    class Two(trainbus.Trainer):
        def evaluate(self, *args, **kwargs):
            first = super().evaluate(sentences(6, seed=2), metric_key_prefix="eval_a")
            return {**first, **super().evaluate(*args, **kwargs)}

    args = trainbus.TrainingArguments(str(tmp_path), **{**ARGS, "max_steps": 2, "metric_for_best_model": "a_loss"})
    trainer = Two(bert(), args, train_dataset=sentences(22), eval_dataset=sentences(6, seed=1))
    trainer.on("on_evaluate_end", lambda metrics: ended.append(dict(metrics)))
    trainer.train()
    assert [{"eval_a_loss", "eval_loss"} <= set(metrics) for metrics in ended] == [True]
    assert trainer.state.best_metric == ended[0]["eval_a_loss"]
    trainer.evaluate()
    assert len(ended) == 2


def test_function_set_on_the_trainer_is_the_evaluation(tmp_path: Path) -> None:
    args = trainbus.TrainingArguments(str(tmp_path), **{**ARGS, "max_steps": 4})
    trainer = trainbus.Trainer(bert(), args, train_dataset=sentences(22), eval_dataset=sentences(6, seed=1))
    trainer.evaluate = lambda *rest, **options: {"eval_f1": F1[trainer.state.global_step // 2 - 1]}
    trainer.train()
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (0.7, 4)


def test_override_outside_of_training_is_a_session(tmp_path: Path) -> None:
    class Predicting(OwnLoop, trainbus.Trainer):
        def predict(self, test_dataset, ignore_keys=None, metric_key_prefix="test"):
            return self.evaluation_loop(self.get_test_dataloader(test_dataset), "Prediction").num_samples

    args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True)
    trainer = Predicting(bert(), args, eval_dataset=sentences(6, seed=1))
    modes: list[str] = []
    trainer.on("on_setup", lambda run: modes.append(run.mode))
    trainer.state.global_step = 2
    assert trainer.evaluate()["eval_f1"] == 0.1
    assert trainer.predict(sentences(6)) == 6
    assert modes == ["evaluate", "predict"]
