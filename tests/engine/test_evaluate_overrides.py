"""An overridden `evaluate`: the best model, early stopping and schedules follow what it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import history, same_weights, timeless, weights
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


# Several named datasets.


class Doubles:
    """Adds a metric with the prefix that it receives, and logs it, as scripts for one dataset do."""

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval"):
        asked.append((eval_dataset if isinstance(eval_dataset, str) else type(eval_dataset), metric_key_prefix))
        metrics = super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)
        if f"{metric_key_prefix}_loss" in metrics:
            metrics[f"{metric_key_prefix}_double"] = 2 * metrics[f"{metric_key_prefix}_loss"]
            self.log({f"{metric_key_prefix}_step": self.state.global_step})
        return metrics


class AnyArguments:
    """Passes everything on."""

    def evaluate(self, *args, **kwargs):
        asked.append((args, sorted(kwargs.items(), key=str)))
        return super().evaluate(*args, **kwargs)


asked: list[Any] = []
"""The arguments of the calls of an override."""
NAMED = {"easy": sentences(6, seed=1), "hard": sentences(4, seed=2)}


def named(library: Any, mixin: type, folder: Path, **args: Any) -> Any:
    with hushed():
        given = library.TrainingArguments(str(folder / library.__name__), **{**ARGS, "max_steps": 6, **args})
        cls = type(mixin.__name__, (mixin, library.Trainer), {})
        return cls(model=bert(), args=given, train_dataset=sentences(22), eval_dataset=NAMED)


CALLS = {
    "all datasets": lambda trainer: trainer.evaluate(),
    "other datasets": lambda trainer: trainer.evaluate({"other": sentences(5, seed=3), "more": sentences(3, seed=4)}),
    "one dataset": lambda trainer: trainer.evaluate(sentences(5, seed=3)),
    "another prefix": lambda trainer: trainer.evaluate(metric_key_prefix="final"),
}


@pytest.mark.parametrize("mixin", [Doubles, AnyArguments])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_override_is_called_for_each_dataset_as_in_transformers(mixin: type, call: Any, tmp_path: Path) -> None:
    found = []
    for library in (transformers, trainbus):
        asked.clear()
        trainer = named(library, mixin, tmp_path)
        with hushed():
            found.append((timeless(call(trainer)), history(trainer), list(map(str, asked))))
    assert found[0] == found[1]


def test_best_model_by_the_metric_that_an_override_adds_for_a_dataset(tmp_path: Path) -> None:
    args = {"metric_for_best_model": "hard_double", "greater_is_better": False}
    theirs = named(transformers, Doubles, tmp_path, **args)
    with hushed():
        theirs.train()
    ours = named(trainbus, Doubles, tmp_path, **args)
    ended: list[dict[str, Any]] = []
    begun: list[int] = []
    ours.on("on_evaluate_end", lambda metrics: ended.append(dict(metrics)))
    ours.on("on_evaluate_begin", lambda state: begun.append(state.global_step))
    with hushed():
        ours.train()
    assert history(ours) == history(theirs)
    assert (ours.state.best_metric, ours.state.best_global_step) == (
        theirs.state.best_metric,
        theirs.state.best_global_step,
    )
    assert [{"eval_easy_double", "eval_hard_double"} <= set(metrics) for metrics in ended] == [True] * 3
    assert begun == [2, 4, 6]


def test_override_that_takes_no_dataset_is_called_once(tmp_path: Path) -> None:
    class Plain(trainbus.Trainer):
        calls = 0

        def evaluate(self):
            self.calls += 1
            return super().evaluate()

    args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True)
    trainer = Plain(bert(), args, eval_dataset=NAMED)
    assert {"eval_easy_loss", "eval_hard_loss"} <= set(trainer.evaluate())
    assert trainer.calls == 1


def test_override_that_ignores_the_dataset_ends(tmp_path: Path) -> None:
    class All(trainbus.Trainer):
        def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
            return super().evaluate()

    args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True)
    assert {"eval_easy_loss", "eval_hard_loss"} <= set(All(bert(), args, eval_dataset=NAMED).evaluate())


def test_prefix_that_names_the_dataset_is_not_repeated(tmp_path: Path) -> None:
    args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True)
    trainer = trainbus.Trainer(bert(), args, eval_dataset=NAMED)
    first, second = trainer.evaluate("hard"), trainer.evaluate("hard", metric_key_prefix="eval_hard")
    assert timeless(first) == timeless(second)
    assert "eval_hard_loss" in first
