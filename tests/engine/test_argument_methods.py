"""What scripts call on the arguments: setters, and having the first process go first."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest
import transformers

from trainbus import TrainingArguments
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
def test_setters_set_what_those_of_transformers_set(name: str, given: bool, tmp_path) -> None:
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
    assert [*mine] == [each for each in other if each != "activation_checkpointing"]
    assert {key: of.default for key, of in mine.items() if key not in ("gradient_checkpointing", "strategy")} == {
        key: other[key].default for key in mine if key not in ("gradient_checkpointing", "strategy")
    }


def test_a_wrong_value_changes_nothing() -> None:
    args = TrainingArguments("out", learning_rate=0.5)
    with pytest.raises(ArgumentError, match="per_device_train_batch_size"):
        args.set_training(learning_rate=0.1, batch_size=0)
    assert args.learning_rate == 0.5
    assert args.per_device_train_batch_size == 8


def test_no_evaluation_is_no_evaluation() -> None:
    args = TrainingArguments("out", eval_strategy="epoch")
    assert args.do_eval
    assert not args.set_evaluate(strategy="no").do_eval


def test_alone_the_first_process_is_the_only_one() -> None:
    args = TrainingArguments("out", ddp_timeout=90)
    with args.main_process_first(desc="tokenizing"):
        assert args.parallel_mode.value == "not_parallel"
    assert args.ddp_timeout_delta == timedelta(seconds=90)
    assert args.place_model_on_device


def test_among_several_the_mode_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert TrainingArguments("out").parallel_mode == "distributed"
