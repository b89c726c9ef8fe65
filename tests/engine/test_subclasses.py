"""Subclasses written for transformers' Trainer: their overrides run, with its numbers, or are warned of."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler
from transformers.trainer_pt_utils import metrics_format

import trainbus
from support.data import points, sentences
from support.models import Regression, bert
from support.outcomes import history, same_weights, timeless, weights
from support.trainers import hushed, regression_trainer
from trainbus.engine.api.moments import CALLED
from trainbus.engine.api.removed_names import MISSING, NEVER_CALLED
from trainbus.events import Callback
from trainbus.events.errors import ArgumentError


def of_both(folder: Path, mixin: type, args: dict[str, Any], do: Any = lambda run: run.train()) -> list[tuple]:
    """Do the same with a subclass of transformers' Trainer and with one of ours; return (trainer, result) of each."""
    done = []
    for library in (transformers, trainbus):
        with hushed():
            said = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "save_strategy": "no", "logging_steps": 1}
            given = library.TrainingArguments(
                str(folder / library.__name__),
                **{**said, "use_cpu": True, "disable_tqdm": True, "report_to": "none", **args},
            )
            cls = type(mixin.__name__, (mixin, library.Trainer), {})
            data = {"train_dataset": sentences(22), "eval_dataset": sentences(10, seed=1)}
            run = cls(model=bert(), args=given, **data)
            done.append((run, do(run)))
    return done


def assert_equal_runs(theirs: Any, ours: Any) -> None:
    assert same_weights(weights(theirs.model), weights(ours.model))
    assert [entry.get("loss") for entry in history(ours)] == [entry.get("loss") for entry in history(theirs)]


class UsualStep:
    """The step that most subclasses write."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()


class MaskedInputs:
    """Blanks a token of each row, in training and in evaluation."""

    calls = 0

    def _prepare_inputs(self, inputs):
        inputs = super()._prepare_inputs(inputs)
        self.calls += 1
        return {**inputs, "input_ids": inputs["input_ids"].index_fill(1, torch.tensor([self.calls % 12]), 0)}


class MaskedStep(MaskedInputs, UsualStep):
    """Both at once: the inputs are prepared once for each batch."""


class Weighted:
    """Draws rows by weight, as for classes of unequal size."""

    def _get_train_sampler(self, train_dataset=None):
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return WeightedRandomSampler([1.0 + row["labels"] for row in dataset], len(dataset))


class Shuffled:
    """Names the sampler that is the default."""

    def _get_train_sampler(self, train_dataset=None):
        return RandomSampler(self.train_dataset)


class InOrder:
    """Keeps the order of the dataset."""

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


class Inherited:
    """Asks the trainer for its sampler."""

    asked = 0

    def _get_train_sampler(self, train_dataset=None):
        self.asked += 1
        return super()._get_train_sampler(train_dataset)


class Backwards:
    """Evaluates the last row first."""

    def _get_eval_sampler(self, eval_dataset):
        return list(reversed(range(len(eval_dataset))))


class Scaled:
    """Says that its loss is divided already."""

    loss_is_scaled_for_ga = True


class Counted:
    """Sets, as a subclass does, what the trainer found out of the model."""

    def __init__(self, *rest, **options):
        super().__init__(*rest, **options)
        self.model_accepts_loss_kwargs = False
        self.label_names = ["labels"]


@pytest.mark.parametrize("mixin", [UsualStep, MaskedInputs, MaskedStep, Scaled, Counted])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_step_of_a_subclass_gives_the_weights_of_transformers(tmp_path, mixin, accumulate):
    (theirs, _), (ours, _) = of_both(tmp_path, mixin, {"gradient_accumulation_steps": accumulate})
    assert_equal_runs(theirs, ours)


@pytest.mark.parametrize("mixin", [Weighted, Shuffled, InOrder, Inherited])
def test_train_sampler_of_a_subclass_gives_the_order_of_transformers(tmp_path, mixin):
    (theirs, _), (ours, _) = of_both(tmp_path, mixin, {})
    assert_equal_runs(theirs, ours)
    plain = trainbus.Trainer(
        bert(),
        trainbus.TrainingArguments(str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True),
        train_dataset=sentences(22),
    )
    plain.train()
    assert same_weights(weights(plain.model), weights(ours.model)) == (mixin in (Shuffled, Inherited))


def test_eval_sampler_of_a_subclass_orders_evaluation_and_prediction(tmp_path):
    def do(run: Any) -> Any:
        return run.predict(sentences(10, seed=2)), timeless(run.evaluate())

    (_, theirs), (_, ours) = of_both(tmp_path, Backwards, {}, do)
    assert (ours[0].predictions == theirs[0].predictions).all()
    assert (ours[0].label_ids == theirs[0].label_ids).all()
    assert ours[0].label_ids.tolist() == [row["labels"] for row in reversed(sentences(10, seed=2))]
    assert ours[1]["eval_loss"] == theirs[1]["eval_loss"]


def test_prepared_inputs_are_those_of_prediction_too(tmp_path):
    (theirs, expected), (ours, found) = of_both(
        tmp_path, MaskedInputs, {}, lambda run: run.predict(sentences(20, seed=2))
    )
    assert (found.predictions == expected.predictions).all()
    assert found.metrics["test_loss"] == expected.metrics["test_loss"]
    assert ours.calls == theirs.calls == 3


@pytest.mark.parametrize("generator", [lambda: None, lambda: torch.Generator().manual_seed(5)], ids=["global", "own"])
@pytest.mark.parametrize("step", [3, 7])
def test_sampler_of_a_subclass_resumes_in_the_middle_of_an_epoch(tmp_path, generator, step):
    class Drawn(trainbus.Trainer):
        def _get_train_sampler(self):  # the form of earlier years
            return WeightedRandomSampler([1.0] * 20, 20, generator=generator())

    def run(folder: Path) -> Any:
        args = trainbus.TrainingArguments(
            str(folder), per_device_train_batch_size=4, num_train_epochs=2, save_steps=step, use_cpu=True
        )
        return Drawn(Regression(), args, train_dataset=points(20))

    unbroken = run(tmp_path)
    unbroken.train()
    resumed = run(tmp_path)
    torch.rand(5)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert same_weights(weights(unbroken.model), weights(resumed.model))


def test_save_of_a_subclass_writes_models_and_checkpoints(tmp_path):
    class Noting:
        def _save(self, output_dir=None, state_dict=None):
            super()._save(output_dir, state_dict)
            (Path(output_dir) / "note.json").write_text(json.dumps(self.state.global_step))

    def do(run: Any) -> Any:
        run.train()
        run.save_model()

    for run, _ in of_both(tmp_path, Noting, {"save_strategy": "steps", "save_steps": 6}, do):
        folder = Path(run.args.output_dir)
        assert json.loads((folder / "checkpoint-6/note.json").read_text()) == 6
        assert json.loads((folder / "note.json").read_text()) == 12
        assert (folder / "checkpoint-6/model.safetensors").is_file()


def test_columns_of_a_subclass_are_kept(tmp_path):
    class Extra:
        def _set_signature_columns_if_needed(self):
            super()._set_signature_columns_if_needed()
            if "extra" not in self._signature_columns:
                self._signature_columns += ["extra"]

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            factor = inputs["extra"].float().mean()
            inputs = {name: value for name, value in inputs.items() if name != "extra"}
            outputs = model(**inputs)
            return (outputs.loss * factor, outputs) if return_outputs else outputs.loss * factor

    def do(run: Any) -> Any:
        run.train_dataset = [{**row, "extra": at} for at, row in enumerate(sentences(22))]
        return run.train()

    (theirs, _), (ours, _) = of_both(tmp_path, Extra, {}, do)
    assert_equal_runs(theirs, ours)


# What is never called.


@pytest.mark.parametrize("name", NEVER_CALLED)
def test_an_override_that_is_never_called_warns_once_with_a_remedy(name):
    body = {name: lambda self, *rest, **options: None}
    with pytest.warns(UserWarning, match="never called") as caught:
        cls = type("Mine", (trainbus.Trainer,), body)
    assert [str(warning.message) for warning in caught] == [f"Mine.{name} is never called: {NEVER_CALLED[name]}"]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Heir", (cls,), {})


def test_every_method_of_transformers_is_here_or_has_its_remedy():
    theirs = {name for name, value in vars(transformers.Trainer).items() if callable(value)}
    theirs = {name for name in theirs if not name.startswith("__")}
    assert {name for name in theirs if not hasattr(trainbus.Trainer, name)} <= set(NEVER_CALLED)
    private = {name for name in theirs if name.startswith("_")} - set(NEVER_CALLED)
    called = {"_get_eval_sampler", "_get_train_sampler", "_prepare_inputs", "_save", "_set_signature_columns_if_needed"}
    assert private == called | {name for name in CALLED if name.startswith("_")}


# What subclasses read.


def test_every_attribute_of_transformers_exists_or_names_its_replacement(tmp_path):
    with hushed():
        theirs = transformers.Trainer(
            Regression(), transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
        )
    ours = regression_trainer(tmp_path)
    absent = {name for name in vars(theirs) if not hasattr(ours, name)}
    assert absent <= set(MISSING)
    for name in absent:
        with pytest.raises(AttributeError, match="which transformers has") as raised:
            getattr(ours, name)
        assert MISSING[name] in str(raised.value)


def test_unknown_attributes_raise_attribute_error(tmp_path):
    class Broken(trainbus.Trainer):
        @property
        def wrong(self):
            return self.args.no_such_argument

    run = Broken(Regression(), trainbus.TrainingArguments(str(tmp_path), use_cpu=True))
    with pytest.raises(AttributeError, match="'Broken' object has no attribute 'nothing'"):
        _ = run.nothing
    with pytest.raises(AttributeError, match="no_such_argument"):
        _ = run.wrong
    assert not hasattr(run, "__setstate__")
    assert copy.copy(run).args is run.args
    assert not hasattr(object.__new__(trainbus.Trainer), "deepspeed")


def test_attributes_are_those_of_transformers(tmp_path):
    seen: list[Any] = []

    class Looking:
        def training_step(self, model, inputs, num_items_in_batch=None):
            accelerator = self.accelerator
            loss = super().training_step(model, inputs, num_items_in_batch)
            seen.append(
                {
                    "in_train": self.is_in_train,
                    "batch": self._train_batch_size,
                    "labels": self.label_names,
                    "takes": self.model_accepts_loss_kwargs,
                    "deepspeed": self.is_deepspeed_enabled,
                    "fsdp": self.is_fsdp_enabled,
                    "main": (accelerator.is_main_process, accelerator.is_local_main_process),
                    "place": (accelerator.num_processes, accelerator.process_index, accelerator.local_process_index),
                    "device": accelerator.device,
                    "sync": accelerator.sync_gradients,
                    "unwrapped": accelerator.unwrap_model(model) is self.model,
                    "gathered": accelerator.gather({"a": loss})["a"].tolist(),
                    "metrics": accelerator.gather_for_metrics(loss.reshape(1)).tolist(),
                    "autocast": torch.is_autocast_enabled("cpu"),
                }
            )
            return loss

    (theirs, _), (ours, _) = of_both(tmp_path, Looking, {"gradient_accumulation_steps": 2})
    half = len(seen) // 2
    assert seen[half:] == seen[:half]
    assert [step["sync"] for step in seen[half : half + 6]] == [False, True, False, True, False, True]
    assert ours.is_in_train is theirs.is_in_train is False


def test_backward_announces_the_loss(tmp_path):
    class Halving(Callback):
        def on_loss(self, run):
            run.loss = run.loss / 2

    class Mine(UsualStep, trainbus.Trainer):
        pass

    args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True, max_steps=1, optim="sgd", max_grad_norm=0.0)
    moved = []
    for callbacks in ([], [Halving()]):
        run = Mine(Regression(), args, train_dataset=points(8), callbacks=callbacks)
        before = weights(run.model)["linear.bias"]
        run.train()
        moved.append(weights(run.model)["linear.bias"] - before)
    assert torch.allclose(moved[0], 2 * moved[1])
    assert moved[0].abs() > 0


def test_autocast_is_the_half_precision_of_the_callback(tmp_path):
    seen = []

    class Mine(trainbus.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            with self.accelerator.autocast():
                seen.append(torch.is_autocast_enabled("cpu"))
            return super().training_step(model, inputs, num_items_in_batch)

    for bf16 in (False, True):
        args = trainbus.TrainingArguments(str(tmp_path), use_cpu=True, max_steps=1, bf16=bf16)
        Mine(Regression(), args, train_dataset=points(8)).train()
    assert seen == [False, True]


def test_backward_outside_of_training_is_an_error_with_a_remedy(tmp_path):
    run = regression_trainer(tmp_path)
    with pytest.raises(ArgumentError, match="Override `training_step`"):
        run.accelerator.backward(torch.zeros(1, requires_grad=True))


def test_accelerator_prints_and_waits(tmp_path, capsys):
    run = regression_trainer(tmp_path)
    run.accelerator.wait_for_everyone()
    run.accelerator.print("one", "two")
    assert capsys.readouterr().out == "one two\n"
    assert not hasattr(run.accelerator, "nothing")


def test_settings_of_the_objective_survive_a_new_model(tmp_path):
    run = regression_trainer(tmp_path, model_init=Regression)
    run.label_names, run.model_accepts_loss_kwargs = ["y"], True
    run.train_dataset = [{"x": row["x"], "labels": row["labels"], "y": row["labels"]} for row in points(8)]
    run._use_model(run.call_model_init())
    assert (run.label_names, run.model_accepts_loss_kwargs) == (["y"], True)
    assert "y" in run.objective.accepted_columns


def test_callback_handler_is_the_list_of_callbacks_and_announces(tmp_path):
    heard = []

    class Hearing(Callback):
        def on_log(self, logs):
            heard.append(logs)

    run = regression_trainer(tmp_path)
    hearing = Hearing()
    run.callback_handler.add_callback(hearing)
    assert hearing in run.callback_handler.callbacks
    run.control = run.callback_handler.on_log(run.args, run.state, run.control, {"loss": 1.0})
    assert heard == [{"loss": 1.0}]
    assert run.callback_handler.pop_callback(Hearing) is hearing
    run.callback_handler.add_callback(hearing)
    run.callback_handler.remove_callback(hearing)
    assert hearing not in run.callback_handler.callbacks
    with pytest.raises(AttributeError, match="no 'on_nothing'"):
        _ = run.callback_handler.on_nothing
    with pytest.raises(ArgumentError, match="control of a run cannot be replaced"):
        run.control = SimpleNamespace()


def test_unused_columns_are_removed_as_transformers_removes_them(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [[0.0] * 3] * 2, "labels": [0.0, 1.0], "text": ["a", "b"]})
    assert regression_trainer(tmp_path)._remove_unused_columns(rows, "training").column_names == ["x", "labels"]
    kept = regression_trainer(tmp_path, args={"remove_unused_columns": False})._remove_unused_columns(rows)
    assert kept.column_names == ["x", "labels", "text"]


def test_metrics_are_formatted_as_transformers_formats_them():
    metrics = {"eval_loss": 0.123456, "eval_runtime": 3671.5, "total_flos": 5e10, "eval_mem_cpu": 1 << 24, "rows": 3}
    assert trainbus.Trainer.metrics_format(metrics) == metrics_format(metrics)


def test_tokens_are_counted():
    batches = [{"input_ids": torch.zeros(2, 3)}, {"input_ids": torch.zeros(1, 3)}]
    assert trainbus.Trainer.num_tokens(batches) == 9
    assert trainbus.Trainer.num_tokens(batches, max_steps=4) == 24
