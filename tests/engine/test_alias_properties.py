"""Older names of arguments read and write the argument that they stand for."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from trainbus import Seq2SeqTrainingArguments, TrainingArguments
from trainbus.engine.arguments import ALIASES
from trainbus.events import ArgumentError

EXAMPLES: dict[str, Any] = {
    "activation_checkpointing": True,
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    "adafactor": True,
    "evaluate_during_training": True,
    "evaluation_strategy": "steps",
    "fp16_backend": "auto",
    "group_by_length": True,
    "half_precision_backend": "auto",
    "include_inputs_for_metrics": True,
    "include_tokens_per_second": True,
    "no_cuda": True,
    "per_gpu_eval_batch_size": 3,
    "per_gpu_train_batch_size": 3,
    "push_to_hub_model_id": "me/model",
    "push_to_hub_token": "token",
    "recompute": True,
    "save_safetensors": True,
    "torchdynamo": "eager",
    "use_legacy_prediction_loop": False,
    "xpu_backend": "gloo",
}
CLASHING = {"device", "train_batch_size", "eval_batch_size"}
"""Aliases that are also properties with a meaning of their own."""


def quietly(**values: Any) -> TrainingArguments:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return TrainingArguments(**values)


def test_every_alias_has_an_example() -> None:
    assert EXAMPLES.keys() == ALIASES.keys() - CLASHING


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_alias_returns_the_set_value(name: str) -> None:
    args = quietly(**{name: EXAMPLES[name]})
    assert getattr(args, name) == EXAMPLES[name]
    assert getattr(TrainingArguments(), name, "missing") != "missing"


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_assignment_equals_the_keyword(name: str) -> None:
    args = TrainingArguments()
    setattr(args, name, EXAMPLES[name])
    assert getattr(args, name) == EXAMPLES[name]
    assert args.to_dict() == quietly(**{name: EXAMPLES[name]}).to_dict()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_switch_can_be_turned_off() -> None:
    args = quietly(group_by_length=True, adafactor=True)
    args.group_by_length = args.adafactor = False
    assert args.to_dict() == TrainingArguments().to_dict()
    args = TrainingArguments(optim="sgd")
    args.adafactor = False
    assert args.optim == "sgd"


def test_an_assignment_warns_and_is_checked() -> None:
    args = TrainingArguments()
    with pytest.warns(FutureWarning, match="`evaluation_strategy` is now `eval_strategy`"):
        args.evaluation_strategy = "epoch"
    with pytest.warns(FutureWarning), pytest.raises(ArgumentError, match="eval_strategy"):
        args.evaluation_strategy = "sometimes"
    assert args.eval_strategy == "epoch"


@pytest.mark.parametrize("cls", [TrainingArguments, Seq2SeqTrainingArguments])
@pytest.mark.parametrize(("name", "near"), [("lerning_rate", "learning_rate"), ("evaluation_stategy", "eval")])
def test_an_unknown_assignment_is_refused(cls: type, name: str, near: str) -> None:
    args = cls()
    with pytest.raises(ArgumentError, match=f"`{name}` is not an argument; did you mean '{near}"):
        setattr(args, name, 1)


def test_copies_and_pickles_keep_their_values() -> None:
    args = quietly(no_cuda=True)
    for other in (copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        assert other.no_cuda
        assert other.use_cpu


def test_a_subclass_may_have_its_own_attributes() -> None:
    class Own(TrainingArguments):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.corpus = "books"

    own = Own()
    own.more = 1
    assert own.corpus == "books"


def test_a_field_of_a_subclass_with_an_older_name_counts() -> None:
    @dataclass(kw_only=True)
    class Old(TrainingArguments):
        evaluation_strategy: str = "epoch"
        no_cuda: bool = False

    old = Old()
    assert (old.eval_strategy, old.do_eval) == ("epoch", True)
    assert Old(evaluation_strategy="steps").eval_strategy == "steps"
    assert Old(no_cuda=True).use_cpu
    assert Old(eval_strategy="steps").eval_strategy == "steps"  # over the default of the subclass
    with pytest.raises(ArgumentError, match="set only `eval_strategy`"):
        Old(evaluation_strategy="steps", eval_strategy="epoch")
