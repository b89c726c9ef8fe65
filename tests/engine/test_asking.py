"""Methods of the Trainer that read or set properties of the optimizer and the model."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from trainbus import Trainer, TrainingArguments
from trainbus.events.errors import ArgumentError


def test_the_names_of_decayed_parameters_can_be_overridden(tmp_path: Path):
    class Sparing(Trainer):
        def get_decay_parameter_names(self, model):
            return [name for name in super().get_decay_parameter_names(model) if "first" not in name]

    model = nn.Sequential(OrderedDict(first=nn.Linear(3, 3), last=nn.Linear(3, 1)))
    trainer = Sparing(model, TrainingArguments(str(tmp_path), weight_decay=0.1, use_cpu=True))
    decaying, others = trainer.create_optimizer().param_groups
    assert [id(weight) for weight in decaying["params"]] == [id(model.last.weight)]
    assert len(others["params"]) == 3


def test_the_optimizer_class_and_options_can_be_read_and_overridden(tmp_path: Path):
    args = TrainingArguments(str(tmp_path), optim="sgd", optim_args="momentum=0.5", learning_rate=0.2, use_cpu=True)
    assert Trainer.get_optimizer_cls_and_kwargs(args) == (torch.optim.SGD, {"lr": 0.2, "momentum": 0.5})

    class Own(Trainer):
        @staticmethod
        def get_optimizer_cls_and_kwargs(args, model=None):
            _, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
            return torch.optim.Adagrad, {"lr": options["lr"]}

    optimizer = Own(nn.Linear(2, 1), args).create_optimizer()
    assert type(optimizer) is torch.optim.Adagrad
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_a_factory_is_given_the_model(tmp_path: Path):
    class Factory:
        def __call__(self, model, lr):
            return torch.optim.SGD(model.parameters(), lr=lr)

    model = nn.Linear(2, 1)
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    optimizer = Trainer(model, args, optimizer_cls_and_kwargs=(Factory, {"lr": 0.3})).create_optimizer()
    assert type(optimizer) is torch.optim.SGD
    assert [id(weight) for weight in optimizer.param_groups[0]["params"]] == [
        id(weight) for weight in model.parameters()
    ]


def test_the_model_may_be_replaced_between_runs_only(tmp_path: Path):
    rows = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(4)]

    class Net(nn.Linear):
        def forward(self, x, labels):
            return {"loss": (super().forward(x) - labels).square().mean()}

    trainer = Trainer(Net(2, 1), TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True), train_dataset=rows)
    trainer.train()
    other = Net(2, 1)
    before = other.weight.detach().clone()
    trainer.model = other
    trainer.train()
    assert trainer.model is other
    assert not torch.equal(other.weight, before)

    def replace_it():
        trainer.model = Net(2, 1)

    trainer.on("on_step_end", replace_it)
    with pytest.raises(ArgumentError, match="cannot be replaced during train"):
        trainer.train()


def test_unset_intervals_keep_the_defaults_of_a_new_state(tmp_path: Path):
    class Net(nn.Linear):
        def forward(self, x):
            return {"loss": super().forward(x).mean()}

    rows = [{"x": torch.ones(2)} for _ in range(8)]
    args = TrainingArguments(str(tmp_path), max_steps=4, save_steps=0.5, use_cpu=True, disable_tqdm=True)
    trainer = Trainer(Net(2, 1), args, train_dataset=rows)
    trainer.train()
    state = trainer.state
    assert (state.logging_steps, state.eval_steps, state.save_steps) == (500, 500, 2)


def test_arguments_of_transformers_are_refused_naming_the_import(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ArgumentError, match="write `from trainbus import TrainingArguments` in place of"):
        Trainer(nn.Linear(2, 1), theirs)
