"""Methods of the arguments that scripts call: setters, and `main_process_first`."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import transformers

import trainbus
from trainbus import HubStrategy, OptimizerNames, SchedulerType, Trainer, TrainingArguments
from trainbus.events.errors import ArgumentError

SETTERS: dict[str, dict[str, Any]] = {
    "set_training": {"learning_rate": 1e-4, "batch_size": 32, "num_epochs": 2, "seed": 7},
    "set_evaluate": {"strategy": "steps", "steps": 100, "batch_size": 16, "delay": 3},
    "set_testing": {"batch_size": 32, "loss_only": True},
    "set_save": {"strategy": "steps", "steps": 100, "total_limit": 2},
    "set_logging": {"strategy": "steps", "steps": 100, "first_step": True},
    "set_push_to_hub": {"model_id": "me/mine", "strategy": "end"},
    "set_optimizer": {"name": "adamw_torch", "beta1": 0.8, "weight_decay": 0.1},
    "set_lr_scheduler": {"name": "cosine", "warmup_steps": 0.05, "num_epochs": 2.0},
    "set_dataloader": {"train_batch_size": 16, "drop_last": True, "sampler_seed": 3},
}


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", SETTERS)
def test_setters_set_the_fields_of_transformers(name: str, given: bool, tmp_path) -> None:
    values = SETTERS[name] if given else {key: SETTERS[name][key] for key in SETTERS[name] if key == "model_id"}
    changed = []
    for library in (transformers.TrainingArguments, TrainingArguments):
        args = library(str(tmp_path))
        assert getattr(args, name)(**values) is args
        changed.append(args)
    theirs, ours = changed
    for field in inspect.signature(TrainingArguments).parameters:
        mine, other = getattr(ours, field), getattr(theirs, field, None)
        if hasattr(theirs, field) and getattr(TrainingArguments(str(tmp_path)), field) != mine:
            assert mine == other, field


@pytest.mark.parametrize("name", SETTERS)
def test_their_parameters_are_those_of_transformers(name: str) -> None:
    mine, other = (
        inspect.signature(getattr(of, name)).parameters for of in (TrainingArguments, transformers.TrainingArguments)
    )
    assert {key: of.default for key, of in mine.items()} == {key: of.default for key, of in other.items()}
    assert [*mine] == [*other]


def test_a_wrong_value_changes_nothing() -> None:
    args = TrainingArguments("out", learning_rate=0.5)
    with pytest.raises(ArgumentError, match="per_device_train_batch_size"):
        args.set_training(learning_rate=0.1, batch_size=0)
    assert args.learning_rate == 0.5
    assert args.per_device_train_batch_size == 8


@pytest.mark.parametrize("library", [transformers.TrainingArguments, TrainingArguments])
@pytest.mark.parametrize("name", ["set_evaluate", "set_save", "set_logging"])
def test_every_zero_steps_is_refused_by_both(library: Any, name: str, tmp_path) -> None:
    with pytest.raises(ValueError, match="steps"):
        getattr(library(str(tmp_path)), name)(strategy="steps", steps=0)


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
def test_activations_are_recomputed_under_either_name(name: str) -> None:
    assert TrainingArguments("out").set_training(**{name: True}).gradient_checkpointing is True
    assert TrainingArguments("out", **{name: True}).set_training().gradient_checkpointing is False


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("set_evaluate", {"strategy": "epochs"}, "did you mean 'epoch'"),
        ("set_lr_scheduler", {"name": "cosin"}, "did you mean 'cosine'"),
        ("set_optimizer", {"name": "sgd", "beta1": 2.0}, "`adam_beta1` is 2.0"),
        ("set_save", {"total_limit": 0}, "`save_total_limit` is 0"),
        ("set_logging", {"level": "loud"}, "`log_level` is 'loud'"),
        ("set_push_to_hub", {"model_id": ""}, "`hub_model_id` is empty"),
        ("set_dataloader", {"persistent_workers": True}, "needs worker processes"),
        ("set_testing", {"batch_size": "8"}, "it takes int"),
    ],
)
def test_values_are_checked_as_those_of_a_call_are(name: str, values: dict[str, Any], said: str) -> None:
    args = TrainingArguments("out")
    before = args.to_dict()
    with pytest.raises(ArgumentError, match=said):
        getattr(args, name)(**values)
    assert args.to_dict() == before


@dataclass
class Counted(TrainingArguments):
    made: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.made += 1


def test_the_constructor_of_a_subclass_runs_once() -> None:
    assert Counted("out").set_training(learning_rate=0.1).set_testing(batch_size=2).made == 1


def test_names_of_optimizers_and_schedules_are_strings_with_a_value() -> None:
    args = TrainingArguments("out", optim="sgd", lr_scheduler_type="cosine")
    assert (args.optim.value, args.lr_scheduler_type.value) == ("sgd", "cosine")
    assert (args.optim, args.lr_scheduler_type) == ("sgd", "cosine")
    assert f"{args.optim} {args.lr_scheduler_type}" == "sgd cosine"
    assert json.loads(args.to_json_string())["optim"] == "sgd"
    assert type(args.to_dict()["lr_scheduler_type"]) is str
    assert args.set_optimizer("adafactor").optim is OptimizerNames.ADAFACTOR
    assert repr(TrainingArguments("out", optim="sgd")) == "TrainingArguments(output_dir='out', optim='sgd')"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (OptimizerNames, transformers.training_args.OptimizerNames),
        (SchedulerType, transformers.SchedulerType),
        (HubStrategy, transformers.trainer_utils.HubStrategy),
    ],
)
def test_their_members_are_called_as_in_transformers(ours: Any, theirs: Any) -> None:
    called = {member.value: member.name for member in ours}
    assert {member.value: member.name for member in theirs}.items() <= called.items()


def test_a_misspelt_name_hides_no_wrong_value() -> None:
    with pytest.raises(ArgumentError) as caught:
        TrainingArguments(learning_rte=-1, eval_strategy="epochs", warmup_ratio=3)
    assert str(caught.value).splitlines() == [
        "4 problems:",
        "  - `learning_rte` is not an argument; did you mean 'learning_rate'?",
        "  - `eval_strategy` is 'epochs'; did you mean 'epoch'? Known: 'no', 'steps', 'epoch'.",
        "  - `learning_rate` is -1; set it to a finite number, 0 or more.",
        "  - `warmup_ratio` is 3; set it to a fraction of the run in [0, 1].",
    ]


def test_a_misspelt_name_gives_no_second_error_about_a_missing_one() -> None:
    with pytest.raises(ArgumentError) as caught:
        TrainingArguments(evl_strategy="steps", load_best_model_at_end=True)
    assert str(caught.value) == "`evl_strategy` is not an argument; did you mean 'eval_strategy'?"


def test_no_evaluation_is_no_evaluation() -> None:
    args = TrainingArguments("out", eval_strategy="epoch")
    assert args.do_eval
    assert not args.set_evaluate(strategy="no").do_eval


def test_a_single_process_is_the_first_and_only_rank() -> None:
    args = TrainingArguments("out", ddp_timeout=90)
    with args.main_process_first(desc="tokenizing"):
        assert args.parallel_mode.value == "not_parallel"
    assert args.ddp_timeout_delta == timedelta(seconds=90)
    assert args.place_model_on_device


@pytest.mark.parametrize("name", ["ParallelMode", "IntervalStrategy", "SchedulerType", "OptimizerNames", "HubStrategy"])
def test_members_equal_the_members_of_transformers(name: str) -> None:
    theirs = getattr(transformers.training_args, name)
    ours = {member.value: member for member in getattr(trainbus, name)}
    shared = [member for member in theirs if member.value in ours]
    assert shared
    for member in shared:
        assert [value for value in ours if ours[value] == member] == [member.value]
        assert [value for value in ours if member == ours[value]] == [member.value]
        assert {ours[member.value]: 1}[member.value] == 1


def test_the_mode_selects_one_of_several_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert TrainingArguments("out").parallel_mode == "distributed"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "MULTI_GPU"),
        ({"fsdp": True}, "FSDP"),
        ({"sharding": "stage3"}, "FSDP"),
        ({"sharding": "stage1"}, "MULTI_GPU"),
    ],
)
def test_the_distributed_type_names_fsdp_on_gpus(arguments, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    args = TrainingArguments("out", use_cpu=True, **arguments)
    assert args.distributed_state.distributed_type == "MULTI_CPU"
    monkeypatch.setattr(TrainingArguments, "device", torch.device("cuda", 0))
    assert args.distributed_state.distributed_type == expected


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("patience", "EarlyStopping(patience=...)"),
        ("early_stopping_patience", "EarlyStopping(patience=...)"),
        ("gpus", "torchrun"),
        ("wd", "'weight_decay'"),
        ("grad_accum", "'gradient_accumulation_steps'"),
        ("optimizer", "'optim'"),
        ("scheduler", "'lr_scheduler_type'"),
    ],
)
def test_unknown_names_get_one_hint_in_the_constructor_and_in_an_assignment(name, hint, tmp_path):
    with pytest.raises(ArgumentError) as built:
        TrainingArguments(str(tmp_path), **{name: 1})
    args = TrainingArguments(str(tmp_path))
    with pytest.raises(ArgumentError) as assigned:
        setattr(args, name, 1)
    assert hint in str(built.value)
    assert "problems" not in str(built.value)  # a guess is never applied, so its value is not checked
    assert str(assigned.value).startswith(str(built.value))


@pytest.mark.parametrize(
    ("name", "value"),
    [("eval_strategy", "sometimes"), ("learning_rate", -1), ("optim", "adamm"), ("num_train_epochs", "three")],
)
def test_an_invalid_assignment_has_the_error_of_the_constructor_and_changes_nothing(name, value, tmp_path):
    with pytest.raises(ArgumentError) as built:
        TrainingArguments(str(tmp_path), **{name: value})
    args = TrainingArguments(str(tmp_path))
    before = getattr(args, name)
    with pytest.raises(ArgumentError) as assigned:
        setattr(args, name, value)
    assert str(assigned.value) == str(built.value)
    assert getattr(args, name) == before


def test_arguments_that_depend_on_each_other_are_assigned_one_after_the_other(tmp_path):
    args = TrainingArguments(str(tmp_path))
    args.load_best_model_at_end = True
    args.lr_scheduler_type = "reduce_lr_on_plateau"
    args.save_steps, args.eval_steps, args.max_grad_norm = 7, 3, None
    args.eval_strategy = args.save_strategy = "epoch"
    assert (args.save_steps, args.eval_strategy) == (7, "epoch")


@pytest.mark.parametrize(("name", "meant"), [("loss", "criterion"), ("dataset", "train_dataset")])
def test_an_unknown_argument_of_the_trainer_names_the_nearest(name, meant):
    with pytest.raises(TypeError, match=f"takes no '{name}'; did you mean '{meant}'"):
        Trainer(**{name: 1})


@pytest.mark.parametrize(("name", "meant"), [("lr", "learning_rate"), ("epochs", "num_train_epochs"), ("bf16", "bf16")])
def test_a_training_argument_that_the_trainer_gets_is_placed(name, meant):
    with pytest.raises(TypeError, match=rf"takes no '{name}'. Set it in the arguments: `TrainingArguments\({meant}="):
        Trainer(**{name: 1})


def test_every_parameter_of_the_trainer_that_the_arguments_get_is_placed(tmp_path):
    names = [name for name in inspect.signature(Trainer).parameters if name not in ("args", "callbacks", "kwargs")]
    for name in names:
        with pytest.raises(ArgumentError, match=rf"`{name}` is not an argument. Pass it to the Trainer: `Trainer"):
            TrainingArguments(str(tmp_path), **{name: 1})
