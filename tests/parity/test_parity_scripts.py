"""Parity tests outside of the table of cases: subclasses, datasets by name, and the last log entry."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity_case import BASE, EVAL_ROWS, RESUMED_AT, TRAIN_ROWS, Case
from parity_evaluation import resumed
from parity_losses import GPT2
from parity_outcome import as_text, run_both

from support.data import points, sentences
from support.outcomes import history, last_window, same_weights, timeless
from support.parity_data import accuracy, masked
from support.parity_models import of_bert, plain
from support.trainers import both, regression_trainer

ROWS = {"train_dataset": sentences(TRAIN_ROWS), "eval_dataset": sentences(EVAL_ROWS, 1)}


def test_the_last_log_is_the_mean_of_the_steps_since_the_log_before(tmp_path: Path):
    _, (coarse, _) = both(tmp_path / "coarse", {**BASE, "logging_steps": 5}, model=plain(), **ROWS)
    _, (fine, _) = both(tmp_path / "fine", BASE, model=plain(), **ROWS)
    steps = {entry["step"]: entry for entry in history(fine) if "loss" in entry}
    extra = last_window(coarse)
    assert extra is not None
    assert extra["loss"] == pytest.approx((steps[11]["loss"] + steps[12]["loss"]) / 2, rel=1e-6)
    assert {key: extra[key] for key in extra if key != "loss"} == {
        key: steps[12][key] for key in steps[12] if key != "loss"
    }


def test_a_dataset_is_evaluated_by_name(tmp_path: Path):
    data = {"easy": sentences(9, 1), "hard": sentences(5, 2)}

    def evaluate(trainer: Any) -> Any:
        # transformers names the metrics as those of a single dataset.
        if type(trainer).__module__.startswith("transformers"):
            return trainer.evaluate(data["hard"], metric_key_prefix="eval_hard")
        return trainer.evaluate("hard")

    (_, theirs), (_, ours) = both(tmp_path, {}, do=evaluate, eval_dataset=data, compute_metrics=accuracy)
    assert as_text(timeless(ours)) == as_text(timeless(theirs))


def test_persistent_workers_evaluate_the_given_dataset(tmp_path: Path):
    """transformers reuses the loader of the first evaluation for all later ones."""
    args = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "per_device_eval_batch_size": 4}
    data = {"model": plain(), "eval_dataset": sentences(9, 1)}

    def evaluate(trainer: Any) -> Any:
        return [trainer.evaluate(rows)["eval_loss"] for rows in (None, sentences(5, 2), None)]

    (_, theirs), (_, ours) = both(tmp_path, args, do=evaluate, **data)
    (_, single), (_, _) = both(tmp_path, {}, do=lambda trainer: trainer.evaluate(sentences(5, 2)), **data)
    assert theirs[0] == theirs[1] == theirs[2] == ours[0] == ours[2] != ours[1]
    assert ours[1] == pytest.approx(single["eval_loss"])


def test_a_trainer_with_persistent_workers_is_collected_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # torch waits so many seconds for a worker that was not shut down.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 100.0)
    args = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "max_steps": 2}
    run = regression_trainer(tmp_path, args=args, eval_dataset=points(4))
    run.train()
    run.evaluate()
    workers = multiprocessing.active_children()
    began = time.monotonic()
    del run
    gc.collect()
    assert time.monotonic() - began < 50
    assert len(workers) >= 2
    assert not any(worker.is_alive() for worker in workers)


def batch(rows: int) -> dict[str, torch.Tensor]:
    """Return a batch that a script builds itself."""
    made = sentences(rows)
    return {name: torch.tensor([row[name] for row in made]) for name in made[0]}


def optimizer_groups(trainer: Any) -> Any:
    trainer.create_optimizer()
    return [(len(group["params"]), group["weight_decay"], group["lr"]) for group in trainer.optimizer.param_groups]


def trained(trainer: Any) -> Any:
    trainer.train()
    return trainer


METHODS: dict[str, Callable[[Any], Any]] = {
    "predict": lambda trainer: nested(
        trainer.predict(sentences(5, 2), ignore_keys=["hidden_states"], metric_key_prefix="p")[:2]
    ),
    "predict with arrays": lambda trainer: nested(
        trainer.predict([{name: np.array(value) for name, value in row.items()} for row in sentences(5, 2)])[:2]
    ),
    "predict with tensors": lambda trainer: nested(
        trainer.predict([{name: torch.tensor(value) for name, value in row.items()} for row in sentences(5, 2)])[:2]
    ),
    "compute_loss": lambda trainer: nested(trained(trainer).compute_loss(trainer.model, batch(4))),
    "prediction_step": lambda trainer: nested(trainer.prediction_step(trainer.model.eval(), batch(4), False)),
    "get_train_dataloader": lambda trainer: [nested(rows["input_ids"]) for rows in trainer.get_train_dataloader()],
    "lengths of loaders": lambda trainer: [
        *(len(trainer.get_train_dataloader()), len(trainer.get_eval_dataloader())),
        *(len(trainer.get_test_dataloader(sentences(3))), trainer.num_examples(trainer.get_train_dataloader())),
    ],
    "create_optimizer": optimizer_groups,
    "get_learning_rates": lambda trainer: trained(trainer).get_learning_rates(),
    "get_num_trainable_parameters": lambda trainer: trainer.get_num_trainable_parameters(),
    "get_decay_parameter_names": lambda trainer: sorted(trainer.get_decay_parameter_names(trainer.model)),
    "total_flos": lambda trainer: trained(trainer).state.total_flos,
}


def nested(values: Any) -> Any:
    """Return nested tensors and arrays as lists of numbers."""
    if isinstance(values, (list, tuple)):
        return [nested(value) for value in values]
    return values.tolist() if hasattr(values, "tolist") else values


@pytest.mark.parametrize("do", METHODS.values(), ids=METHODS)
def test_methods_that_scripts_call_return_the_same(do: Callable[[Any], Any], tmp_path: Path):
    model = of_bert("SequenceClassification", vocab_size=50, output_hidden_states=True)
    (_, theirs), (_, ours) = both(tmp_path, {**BASE, "weight_decay": 0.1}, do=do, model=model, **ROWS)
    assert theirs
    assert ours == theirs


RESUMED = {
    "random collator": ({}, {"data_collator": masked, "model": plain()}),
    "random collator in workers": ({"dataloader_num_workers": 2}, {"data_collator": masked, "model": plain()}),
    "grouped by length": ({"train_sampling_strategy": "group_by_length"}, GPT2),
}


@pytest.mark.parametrize(("args", "options"), RESUMED.values(), ids=RESUMED)
def test_a_resumed_run_equals_the_uninterrupted_run_of_both_trainers(args: Any, options: Any, tmp_path: Path):
    """transformers draws and collates the skipped samples a second time, so its resumed run differs."""
    args = {**args, "save_strategy": "steps", "save_steps": RESUMED_AT}
    their_uninterrupted, our_uninterrupted = run_both(Case(args, options), tmp_path / "uninterrupted")
    theirs, ours = run_both(Case(args, options, train=resumed), tmp_path / "resumed")
    assert same_weights(our_uninterrupted.weights, their_uninterrupted.weights)
    assert same_weights(ours.weights, their_uninterrupted.weights)
    assert as_text(ours.history) == as_text(our_uninterrupted.history)
    assert not same_weights(theirs.weights, their_uninterrupted.weights)


def overriding(library: Any) -> type[Any]:
    class Doubling(library.Trainer):
        """A subclass that overrides methods, as scripts for transformers do."""

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            return (2 * loss, outputs) if return_outputs else 2 * loss

        def create_optimizer(self, *args: Any) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
            return self.optimizer

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return super().get_eval_dataloader(self.eval_dataset[:7] if eval_dataset is None else eval_dataset)

        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            return {**super().evaluate(*args, **kwargs), "eval_mine": 1.0}

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log({**logs, "seen": True}, *args, **kwargs)

    return Doubling


def test_overridden_methods_are_called_in_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import transformers

    import trainbus

    for library in (transformers, trainbus):
        monkeypatch.setattr(library, "Trainer", overriding(library), raising=False)
    case = Case({"gradient_accumulation_steps": 4, "eval_strategy": "epoch"}, {"compute_metrics": accuracy})
    theirs, ours = run_both(case, tmp_path)
    assert ours.evaluated["eval_mine"] == ours.history[0]["seen"] == 1.0
    for name in ("steps", "history", "evaluated", "best"):
        assert as_text(getattr(ours, name)) == as_text(getattr(theirs, name)), name
    assert same_weights(ours.weights, theirs.weights)


def test_predictions_keep_the_order_and_the_number_of_samples(tmp_path: Path):
    """The reference is the model itself, called sample by sample."""
    rows = sentences(EVAL_ROWS, 1)
    _, (trainer, output) = both(tmp_path, {"per_device_eval_batch_size": 4}, do=lambda run: run.predict(rows))
    with torch.no_grad():
        one_by_one = [trainer.model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows]
    torch.testing.assert_close(torch.tensor(output.predictions), torch.stack(one_by_one))
    assert output.label_ids.tolist() == [row["labels"] for row in rows]
