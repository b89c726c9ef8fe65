"""Attributes that a program may set on transformers' Trainer: each acts as there, or a message tells why not."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy
import pytest
import torch
import transformers
from torch import nn
from transformers.trainer_pt_utils import LabelSmoother

import trainbus
from support.models import llama
from trainbus.engine.api.removed_names import MISSING
from trainbus.events.errors import ArgumentError

BASE = {"max_steps": 4, "learning_rate": 0.05, "logging_steps": 1, "use_cpu": True, "save_strategy": "no"}
QUIET = {"report_to": "none", "disable_tqdm": True}
LIBRARIES = [transformers, trainbus]


class Classifier(nn.Module):
    """A model with a class loss that ignores `num_items_in_batch`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.config = None

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        return {
            **({} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}),
            "logits": logits,
        }


def class_rows(count: int = 24) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(4, generator=generator), "labels": row % 3} for row in range(count)]


def token_rows() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(0, 300, (6,), generator=generator) for _ in range(24)]
    return [{"input_ids": each, "labels": labelled(each, row % 5)} for row, each in enumerate(tokens)]


def labelled(tokens: torch.Tensor, ignored: int) -> torch.Tensor:
    """Return labels whose first values are ignored, so that batches have different counts."""
    return tokens.clone().index_fill(0, torch.arange(ignored), -100)


MODELS = {"classes": (Classifier, class_rows), "causal": (llama, token_rows)}


def trainer_of(library: Any, folder: Any, kind: str = "classes", **args: Any) -> Any:
    model, rows = MODELS[kind]
    arguments = library.TrainingArguments(str(folder), **{**BASE, **QUIET, "per_device_train_batch_size": 4, **args})
    return library.Trainer(model=model(), args=arguments, train_dataset=rows(), eval_dataset=rows())


def result(trainer: Any) -> Any:
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, [weight.tolist() for weight in trainer.model.parameters()], trainer.evaluate()["eval_loss"]


class At(transformers.TrainerCallback):
    """Calls a function before a step."""

    def __init__(self, step: int, call: Any) -> None:
        self.step, self.call = step, call

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.call()


def doubled(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None, **options: Any) -> torch.Tensor:
    """A loss of the program that also shows which options it receives."""
    logits = outputs["logits"]
    loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return (3 if options.get("shift_labels") else 2) * loss


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("smoother", "factor"),
    [(LabelSmoother(0.2), 0.0), (LabelSmoother(0.3), 0.1), (None, 0.1), (doubled, 0.0)],
    ids=["smoother", "another smoother", "none", "function"],
)
def test_a_label_smoother_acts_as_in_transformers(smoother, factor, kind, accumulate, when, tmp_path):
    found = []
    for library in LIBRARIES:
        options = {"gradient_accumulation_steps": accumulate, "label_smoothing_factor": factor}
        trainer = trainer_of(library, tmp_path, kind, **options)
        if when == "before":
            trainer.label_smoother = smoother
        else:
            trainer.add_callback(At(2, lambda trainer=trainer: setattr(trainer, "label_smoother", smoother)))
        found.append(result(trainer))
        assert trainer.label_smoother is smoother
    assert found[0] == found[1]


def test_a_label_smoother_stays_with_a_later_model_and_with_changed_arguments(tmp_path):
    trainer = trainer_of(trainbus, tmp_path)
    trainer.label_smoother = smoother = LabelSmoother(0.2)
    trainer.args.label_smoothing_factor = 0.4
    trainer.model = Classifier()
    other = trainer_of(trainbus, tmp_path, label_smoothing_factor=0.2)
    assert result(trainer) == result(other)
    assert trainer.label_smoother is smoother
    with pytest.raises(ArgumentError, match=r"`trainer.label_smoother` cannot be 0.1. Set a function"):
        trainer.label_smoother = 0.1


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_loss_function_acts_as_in_transformers(when, tmp_path):
    found = []
    for library in LIBRARIES:
        trainer = trainer_of(library, tmp_path)
        if when == "before":
            trainer.compute_loss_func = doubled
        else:
            trainer.add_callback(At(2, lambda trainer=trainer: setattr(trainer, "compute_loss_func", doubled)))
        found.append(result(trainer))
    assert found[0] == found[1]


def test_a_loss_with_parameters_cannot_be_set_during_a_training(tmp_path):
    class Scale(nn.Linear):
        """A loss with parameters."""

    trainer = trainer_of(trainbus, tmp_path)
    trainer.add_callback(At(2, lambda: setattr(trainer, "criterion", Scale(1, 1))))
    with pytest.raises(ArgumentError, match=r"`trainer.criterion` cannot be replaced during train\(\)"):
        trainer.train()


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("_train_batch_size", 3, "classes"),
        ("neftune_noise_alpha", 5.0, "causal"),
        ("_loss_shifts_labels", False, "causal"),
        ("model_accepts_loss_kwargs", False, "causal"),
    ],
)
def test_a_value_that_is_set_before_the_training_acts_as_in_transformers(name, value, kind, tmp_path):
    found = []
    for library in LIBRARIES:
        trainer = trainer_of(library, tmp_path, kind, gradient_accumulation_steps=2)
        before = getattr(trainer, name)
        setattr(trainer, name, value)
        assert getattr(trainer, name) == value != before
        found.append(result(trainer))
        assert getattr(trainer, name) == value
    assert found[0] == found[1]
    plain = trainer_of(trainbus, tmp_path, kind, gradient_accumulation_steps=2)
    assert result(plain) != found[1]


def test_the_sum_of_losses_can_be_set_as_in_transformers(tmp_path):
    found = []
    for library in LIBRARIES:
        trainer = trainer_of(library, tmp_path, logging_steps=2)
        trainer.add_callback(At(1, lambda trainer=trainer: setattr(trainer, "_tr_loss", torch.tensor(10.0))))
        found.append(result(trainer))
    assert found[0] == found[1]
    assert found[0][0][0] > 5


REFUSED = [
    ("accelerator", object(), "accelerate is not used"),
    ("current_gradient_accumulation_steps", 7, "gradient_accumulation_steps` before"),
    ("is_deepspeed_enabled", True, "Set `deepspeed`"),
    ("is_fsdp_enabled", True, "Set `fsdp`"),
    ("is_in_train", None, "it says whether `train` runs"),
    ("push_in_progress", object(), "push_to_hub"),
    ("label_names", "labels", "Set a list"),
    ("model", None, "Set a torch module"),
    ("state", object(), "Set a `TrainerState`"),
    ("callback_handler", object(), "CallbackHandler"),
    ("_train_batch_size", 0, "integer of 1 or more"),
]


@pytest.mark.parametrize(("name", "value", "remedy"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_a_value_that_cannot_act_is_refused_with_a_remedy(name, value, remedy, tmp_path):
    trainer = trainer_of(trainbus, tmp_path)
    with pytest.raises((AttributeError, ArgumentError), match=remedy):
        setattr(trainer, name, value)
    trainer.train()


def test_the_batch_size_cannot_change_during_a_training(tmp_path):
    trainer = trainer_of(trainbus, tmp_path)
    trainer.add_callback(At(1, lambda: setattr(trainer, "_train_batch_size", 2)))
    with pytest.raises(ArgumentError, match=r"cannot be set during train\(\)"):
        trainer.train()


def test_an_attribute_that_only_transformers_reads_gives_one_warning(tmp_path, caplog):
    trainer = trainer_of(trainbus, tmp_path)
    trainer.deepspeed = None
    trainer.current_flos = 0
    assert not caplog.messages
    trainer.gather_function = print
    trainer.gather_function = print
    assert [message.split(", in contrast")[0] for message in caplog.messages] == [
        "`trainer.gather_function` is set, but the Trainer does not read it"
    ]


def attributes_of_transformers() -> list[str]:
    """Return the attributes that transformers' Trainer sets on itself."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(transformers.Trainer)))
    stored = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return sorted({each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"})


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("name", attributes_of_transformers())
def test_every_attribute_of_transformers_can_be_set_to_its_present_value(name, when, tmp_path):
    trainer = trainer_of(trainbus, tmp_path, max_steps=2)
    if not hasattr(trainer, name):
        assert name in MISSING or name == "_attn_mask_causal_checked"
        return

    def again() -> None:
        setattr(trainer, name, getattr(trainer, name))

    if when == "before":
        again()
        trainer.train()
        return
    trainer.add_callback(At(1, again))
    fixed = name in ("model", "state")
    if fixed:
        with pytest.raises(ArgumentError, match=r"cannot be .* during train\(\)"):
            trainer.train()
    else:
        trainer.train()


class Named(trainbus.Trainer):
    """Defines properties that have the names of properties of the Trainer."""

    is_fsdp_enabled = None
    waiting = False

    @property
    def push_in_progress(self) -> bool:
        return self.waiting

    @push_in_progress.setter
    def push_in_progress(self, waiting: bool) -> None:
        self.waiting = waiting


def test_a_subclass_can_set_properties_of_its_own(tmp_path):
    arguments = trainbus.TrainingArguments(str(tmp_path), **BASE, **QUIET)
    trainer = Named(Classifier(), arguments, train_dataset=class_rows())
    trainer.push_in_progress = True
    trainer.is_fsdp_enabled = "own"
    assert trainer.push_in_progress
    assert trainer.waiting
    assert trainer.is_fsdp_enabled == "own"


def test_the_batch_size_can_be_a_number_of_numpy_and_keep_its_value_during_a_training(tmp_path):
    trainer = trainer_of(trainbus, tmp_path)
    trainer._train_batch_size = numpy.int64(2)
    sizes = []
    trainer.add_callback(At(1, lambda: setattr(trainer, "_train_batch_size", 2)))
    trainer.add_callback(At(1, lambda: sizes.append(trainer._train_batch_size)))
    trainer.train()
    assert sizes == [2]
    assert type(trainer.state.train_batch_size) is int
