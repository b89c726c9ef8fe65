"""Overrides of `_inner_training_loop` and `_maybe_log_save_evaluate`, and attributes that programs set."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import trainbus
from support.data import points, sentences
from support.models import Regression, bert
from support.outcomes import same_weights, timeless, weights
from support.trainers import hushed, regression_trainer
from trainbus.engine.api.early_attributes import PARTS, REPLACED

ARGS: dict[str, Any] = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 2,
    "load_best_model_at_end": True,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def of_both(folder: Path, mixin: type, resume: bool = False, **args: Any) -> list[Any]:
    """Train a subclass of transformers' Trainer and one of ours."""
    trained = []
    for library in (transformers, trainbus):
        with hushed():
            given = library.TrainingArguments(str(folder / library.__name__), **{**ARGS, **args})
            data = {"train_dataset": sentences(16), "eval_dataset": sentences(6, seed=1)}
            kind = type(mixin.__name__, (mixin, library.Trainer), {})
            trainer = kind(model=bert(), args=given, **data)
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train(resume_from_checkpoint=resume or None)
            trained.append(trainer)
    return trained


def assert_equal(theirs: Any, ours: Any) -> None:
    assert same_weights(weights(theirs.model), weights(ours.model))
    assert [timeless(entry) for entry in ours.state.log_history] == [
        timeless(entry) for entry in theirs.state.log_history
    ]
    assert Path(ours.state.best_model_checkpoint).name == Path(theirs.state.best_model_checkpoint).name


class Around:
    """Notes what the whole training and each service receive, and calls the default."""

    def _inner_training_loop(self, *args, **kwargs):
        self.seen = [sorted(kwargs)]
        try:
            return super()._inner_training_loop(*args, **kwargs)
        finally:
            self.seen.append("end")

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, trial, epoch, ignore_keys, start, learning_rate=None):
        flags = (self.control.should_log, self.control.should_evaluate, self.control.should_save)
        self.seen.append((self.state.global_step, flags, float(tr_loss), float(grad_norm), learning_rate, epoch))
        options = {"learning_rate": learning_rate}
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, epoch, ignore_keys, start, **options)


def test_overrides_around_the_training_and_each_service_see_the_values_of_transformers(tmp_path):
    theirs, ours = of_both(tmp_path, Around, num_train_epochs=1)
    assert_equal(theirs, ours)
    assert ours.seen == theirs.seen
    assert ours.seen[-1] == "end"
    assert (4, (True, True, True)) in [entry[:2] for entry in ours.seen[1:-1]]


def test_override_around_the_training_receives_the_checkpoint(tmp_path):
    class Resuming:
        def _inner_training_loop(self, *args, **kwargs):
            self.resumes_from = kwargs["resume_from_checkpoint"]
            return super()._inner_training_loop(*args, **kwargs)

    of_both(tmp_path, Resuming, load_best_model_at_end=False)
    theirs, ours = of_both(tmp_path, Resuming, resume=True, max_steps=6, load_best_model_at_end=False)
    assert Path(ours.resumes_from).name == Path(theirs.resumes_from).name == "checkpoint-4"
    assert ours.state.global_step == 6


class OwnService:
    """Logs, evaluates and saves itself, as trainers of TRL do."""

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, trial, epoch, ignore_keys, start, learning_rate=None):
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            loss = tr_loss.item()
            tr_loss -= tr_loss
            steps = self.state.global_step - self._globalstep_last_logged
            self._total_loss_scalar += loss
            self._globalstep_last_logged = self.state.global_step
            self.store_flos()
            self.log({"loss": round(loss / steps, 4), "learning_rate": learning_rate, "own": 1.0}, start)
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys)
            assert metrics["eval_loss"] > 0
            self._determine_best_metric(metrics=metrics, trial=trial)
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)


def test_override_that_serves_itself_gives_the_logs_of_transformers(tmp_path):
    theirs, ours = of_both(tmp_path, OwnService)
    assert_equal(theirs, ours)
    assert [entry["step"] for entry in ours.state.log_history if "own" in entry] == [2, 4]
    assert sorted(path.name for path in (tmp_path / "trainbus").glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-4",
    ]


class Counting(transformers.TrainerCallback):
    """Notes the events that an override may announce too."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def on_log(self, args, state, control, **kwargs):
        self.seen.append((state.global_step, "log"))

    def on_evaluate(self, args, state, control, **kwargs):
        self.seen.append((state.global_step, "evaluate"))

    def on_save(self, args, state, control, **kwargs):
        self.seen.append((state.global_step, "save"))


def test_override_that_announces_a_save_itself_announces_it_once(tmp_path):
    class Watched(OwnService):
        def __init__(self, *args, **kwargs):
            self.counting = Counting()
            super().__init__(*args, callbacks=[self.counting], **kwargs)

    theirs, ours = of_both(tmp_path, Watched)
    assert ours.counting.seen == theirs.counting.seen
    assert ours.counting.seen.count((2, "save")) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_attributes_that_a_program_sets_before_and_after_the_constructor(tmp_path):
    class Early(trainbus.Trainer):
        def __init__(self, *args, **kwargs):
            self.tokenizer = "early"
            self.read = self.tokenizer
            self.optimizer = None
            self.model = None
            super().__init__(*args, **kwargs)

    made = Early(Regression(), trainbus.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    assert made.read == "early"
    assert made.tokenizer == made.processing_class == "early"
    assert isinstance(made.model, Regression)
    made.processing_class = "late"
    assert made.tokenizer == made.run.processing_class == "late"
    made.model_wrapped = made.model
    with pytest.raises(AttributeError, match="override `_wrap_model`"):
        made.model_wrapped = torch.nn.Linear(1, 1)
    with pytest.raises(AttributeError):
        made.is_in_train = True


def assigned_by_transformers() -> set[str]:
    """Return the names of the attributes that transformers' Trainer sets anywhere."""
    tree = ast.parse(Path(inspect.getfile(transformers.Trainer)).read_text())
    stored = (each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}


def own_attributes(trainer: Any) -> set[str]:
    """Return the names of the properties and the plain attributes of a trainer."""
    properties = {name for name in dir(trainbus.Trainer) if isinstance(getattr(trainbus.Trainer, name), property)}
    return properties | set(vars(trainer))


def test_early_values_are_kept_or_warned_of_or_replaced_by_transformers_too(tmp_path, caplog):
    args = trainbus.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    names = own_attributes(trainbus.Trainer(Regression(), args)) - set(PARTS)
    early = {name: f"early {name}" for name in sorted(names)}

    class Early(trainbus.Trainer):
        def __init__(self, *rest: Any, **options: Any) -> None:
            for name, value in early.items():
                setattr(self, name, value)
            super().__init__(*rest, **options)

    made = Early(Regression(), args)
    kept = {name for name, value in early.items() if getattr(made, name) == value}
    warned = {name for name in early if f"`self.{name}` before" in caplog.text}
    assert {"criterion", "tokenizer"} <= kept
    assert {"callbacks", "plugins", "signals", "train_dataloader"} <= warned
    assert not kept & warned
    assert names - kept - warned <= assigned_by_transformers()
    assert made.train_dataset is None


def test_every_attribute_that_is_replaced_silently_is_replaced_by_transformers():
    assert assigned_by_transformers() >= REPLACED


def test_early_tokenizer_and_processing_class_stay_separate(tmp_path):
    class Early:
        def __init__(self, *rest, **options):
            self.tokenizer = "early"
            super().__init__(*rest, processing_class="processor", **options)

    for library in (transformers, trainbus):
        args = library.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
        made = type("Mine", (Early, library.Trainer), {})(Regression(), args)
        assert (made.tokenizer, made.processing_class) == ("early", "processor")
        made.tokenizer = "late"
        assert made.tokenizer == "late"


def test_early_criterion_computes_the_loss_of_an_override(tmp_path):
    class Early(trainbus.Trainer):
        def __init__(self, *rest, **options):
            self.criterion = torch.nn.L1Loss()
            super().__init__(*rest, **options)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(inputs["x"])
            loss = self.criterion(outputs["logits"], inputs["labels"])
            return (loss, outputs) if return_outputs else loss

    args = trainbus.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, max_steps=2)
    trainer = Early(Regression(), args, train_dataset=points(8))
    before = weights(trainer.model)
    trainer.train()
    assert isinstance(trainer.criterion, torch.nn.L1Loss)
    assert not same_weights(before, weights(trainer.model))


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("late", [False, True])
def test_the_run_and_the_bus_cannot_be_replaced_by_a_subclass(tmp_path, name, late):
    class Mine(trainbus.Trainer):
        def __init__(self, *rest, **options):
            if not late:
                setattr(self, name, object())
            super().__init__(*rest, **options)
            setattr(self, name, object())

    args = trainbus.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(
        AttributeError, match=f"Mine.{name} cannot be set to a value of the type object.* such as `own_{name}`"
    ):
        Mine(Regression(), args)


def test_read_only_property_of_a_subclass_cannot_be_set_early(tmp_path):
    class Mine(trainbus.Trainer):
        def __init__(self, *rest, **options):
            self.fixed = 2
            super().__init__(*rest, **options)

        @property
        def fixed(self) -> int:
            return 1

    with pytest.raises(AttributeError, match="fixed"):
        Mine(Regression(), trainbus.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))


def test_new_model_may_be_set_under_both_names(tmp_path):
    trainer, model = regression_trainer(tmp_path), Regression()
    trainer.model = trainer.model_wrapped = model
    before = weights(model)
    trainer.train()
    assert trainer.model is model
    assert not same_weights(before, weights(model))


def test_an_override_that_changes_one_parameter_group_changes_the_parameters_of_transformers(tmp_path):
    class OwnRate:
        def create_optimizer(self, *args, **kwargs):
            optimizer = super().create_optimizer(*args, **kwargs)
            optimizer.param_groups[1]["lr"] = 0.01
            return optimizer

    for decay in (0.0, 0.1):
        theirs, ours = of_both(tmp_path / str(decay), OwnRate, weight_decay=decay, learning_rate=1e-3)
        assert_equal(theirs, ours)
