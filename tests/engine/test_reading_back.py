"""Arguments read back as in transformers: every shared field, with several values, as an attribute and in dicts."""

from __future__ import annotations

import dataclasses
import json
import os
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.debug_utils import DebugOption
from transformers.trainer_pt_utils import AcceleratorConfig as TheirConfig

import trainbus
from trainbus.engine.arguments import AcceleratorConfig
from trainbus.engine.arguments._names import TRACKER_PACKAGES
from trainbus.events.errors import ArgumentError
from trainbus.integrations import INTEGRATIONS, TRACKERS

FIELDS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}

VALUES: dict[str, list[Any]] = {
    "accelerator_config": [
        *(None, {}, {"non_blocking": True}, {"dispatch_batches": False}, '{"non_blocking": true}'),
        *({"split_batches": True, "even_batches": False, "dispatch_batches": True}, {"use_configured_state": False}),
        *(TheirConfig(non_blocking=True), {"gradient_accumulation_kwargs": {"sync_each_batch": True}}),
    ],
    "activation_checkpointing": [True, False, None],
    "activation_checkpointing_kwargs": [None, {"use_reentrant": False}],
    "dataloader_multiprocessing_context": [None, "spawn"],
    "dataloader_persistent_workers": [False],
    "debug": ["", "underflow_overflow", ["underflow_overflow"], None, []],
    "disable_tqdm": [True, False],
    "eval_steps": [None, 0, 10, 10.0, 0.25],
    "eval_strategy": ["no", "steps", "epoch"],
    "fsdp": [None, "", False],
    "fsdp_config": [None, {}],
    "gradient_checkpointing": [True, False, None],
    "gradient_checkpointing_kwargs": [None, {"use_reentrant": False}, '{"use_reentrant": false}'],
    "greater_is_better": [None, True, False],
    "hub_strategy": ["end", "every_save", "checkpoint"],
    "hub_token": ["secret"],
    "include_for_metrics": [[], ["inputs", "loss"]],
    "include_num_input_tokens_seen": [True, False, "all", "no", "non_padding"],
    "label_names": [None, ["y"]],
    "load_best_model_at_end": [False],
    "log_level": ["passive", "info"],
    "log_level_replica": ["warning", "error"],
    "logging_steps": [10, 10.0, 0.25],
    "logging_strategy": ["no", "steps", "epoch"],
    "lr_scheduler_kwargs": [None, {}, "{}"],
    "lr_scheduler_type": ["linear", "cosine", transformers.SchedulerType.COSINE],
    "max_steps": [-1, 10],
    "metric_for_best_model": [None, "loss", "f1"],
    "num_train_epochs": [3, 0.5],
    "optim": ["adamw_torch", "sgd"],
    "optim_target_modules": [None, ["a"], "all-linear"],
    "output_dir": ["x", "~/y", None],
    "report_to": ["none", "all", ["none"], ["all"], "tensorboard", ["tensorboard", "wandb"], []],
    "save_steps": [10, 10.0, 0.25],
    "save_strategy": ["no", "steps", "epoch"],
    "torch_compile_backend": ["inductor", "eager", None],
    "torch_compile_mode": ["default", "reduce-overhead", None],
    "train_sampling_strategy": ["random", "sequential", "group_by_length"],
    "warmup_steps": [0, 5, 5.0, 0.1],
}
"""Field -> values. Other fields are set by the type of their default."""

DEFAULTS = {"logging_nan_inf_filter": False, "restore_callback_states_from_checkpoint": True, "project": None}
"""Fields with another default, which docs/differences/ lists, and ours."""

TWO_NAMES = {"activation_checkpointing", "activation_checkpointing_kwargs", "parallelism_config"}
"""Fields of transformers that are attributes and no fields here. `to_dict` does not repeat them."""

UNCHANGED = {"hub_token", "disable_tqdm"}
"""Fields that read None if they are not set. transformers masks a missing token and decides about bars at once."""


def values_of(name: str) -> list[Any]:
    default = FIELDS[name].default
    if name in VALUES:
        return VALUES[name]
    if isinstance(default, bool):
        return [True, False]
    if isinstance(default, (int, float)):
        return [1, 2] if isinstance(default, int) else [0.5, 0.25]
    return [default, "abc"] if isinstance(default, str) else [None]


NOT_GIVEN = {"ddp_backend", "deepspeed", "push_to_hub", "parallelism_config", "local_rank"}
"""Fields that start something, or that are refused with every value."""

CASES = [(name, value) for name in FIELDS if name not in NOT_GIVEN for value in values_of(name)]


def plain(value: Any) -> Any:
    """Return a value with its type, with enums as their values and configuration objects as dicts."""
    if isinstance(value, Enum):
        return "enum", value.value
    if isinstance(value, (list, tuple)):
        items = [each.value if isinstance(each, Enum) else each for each in value]
        return "list", sorted(items) if all(isinstance(each, str) for each in items) else items
    if hasattr(value, "to_dict"):
        return "object", {key: each for key, each in value.to_dict().items() if key != "use_configured_state"}
    return type(value).__name__, value


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "value"), CASES, ids=lambda case: str(case)[:40])
def test_argument_reads_back_as_in_transformers(name: str, value: Any) -> None:
    given = {"output_dir": "x", "use_cpu": True, **DEFAULTS, name: value}
    theirs, ours = transformers.TrainingArguments(**given), trainbus.TrainingArguments(**given)
    unset = {field for field in UNCHANGED if given.get(field) is None}
    named = {"eval_steps", "logging_steps", "save_steps"} & {name}
    assert not named or type(getattr(ours, name)) is type(getattr(theirs, name))
    assert {field: plain(getattr(ours, field)) for field in FIELDS if field not in unset} == {
        field: plain(getattr(theirs, field)) for field in FIELDS if field not in unset
    }
    for method in ("to_dict", "to_sanitized_dict"):
        dicts = [getattr(args, method)() for args in (theirs, ours)]
        for each in dicts:
            if isinstance(each["accelerator_config"], dict):  # theirs drops the key once the device is known
                each["accelerator_config"].pop("use_configured_state", None)
        found = [{key: plain(each[key]) for key in FIELDS.keys() - TWO_NAMES - unset} for each in dicts]
        assert found[0] == found[1] or (name, value) == ("report_to", "all") or value == ["all"]
    json.dumps(ours.to_dict())


@pytest.mark.parametrize("name", ["mixed_precision", "_VALID_DICT_FIELDS", "_setup_devices", "_n_gpu"])
def test_attribute_that_libraries_read_equals_that_of_transformers(name: str) -> None:
    given = {"output_dir": "x", "use_cpu": True, "bf16": True}
    theirs, ours = transformers.TrainingArguments(**given), trainbus.TrainingArguments(**given)
    assert getattr(ours, name) == getattr(theirs, name)


def test_debug_options_equal_those_of_transformers() -> None:
    assert trainbus.TrainingArguments(debug="underflow_overflow").debug == [DebugOption.UNDERFLOW_OVERFLOW]
    args = trainbus.TrainingArguments(debug=[DebugOption.UNDERFLOW_OVERFLOW])
    assert args.observed == ["underflow_overflow"]
    assert args.to_dict()["debug"] == ["underflow_overflow"]


def test_packages_of_trackers_are_those_of_the_registry() -> None:
    assert {name: INTEGRATIONS[name].package for name in TRACKERS} == TRACKER_PACKAGES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_dictionary_holds_the_name_of_a_dtype(dtype: torch.dtype) -> None:
    @dataclasses.dataclass
    class Typed(trainbus.TrainingArguments):
        dtype: Any = torch.float32
        model_init_kwargs: Any = None

    values = Typed(dtype=dtype, model_init_kwargs={"dtype": dtype}).to_dict()
    assert values["dtype"] == values["model_init_kwargs"]["dtype"] == str(dtype).removeprefix("torch.")
    assert json.loads(Typed(dtype=dtype).to_json_string())["dtype"] == values["dtype"]


@pytest.mark.parametrize("library", [transformers, trainbus])
def test_subclass_reads_json_text_in_fields_that_it_adds(library: Any) -> None:
    @dataclasses.dataclass
    class Mine(library.TrainingArguments):
        _VALID_DICT_FIELDS = [*library.TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]
        model_init_kwargs: Any = None

    assert Mine(output_dir="x", model_init_kwargs='{"a": {"b": 1}}').model_init_kwargs == {"a": {"b": 1}}


def test_json_text_that_is_no_json_is_refused_with_its_field() -> None:
    @dataclasses.dataclass
    class Mine(trainbus.TrainingArguments):
        _VALID_DICT_FIELDS = ["model_init_kwargs"]
        model_init_kwargs: Any = None

    with pytest.raises(ArgumentError, match=r"`model_init_kwargs` is '\{a\}', which is not JSON"):
        Mine(model_init_kwargs="{a}")


OLDER = ["warmup_ratio", "fp16_opt_level", "sharded_ddp", "overwrite_output_dir", "past_index", "local_rank"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [*OLDER, "logging_dir", "gradient_checkpointing", "evaluation_strategy"])
def test_none_for_an_older_argument_is_its_default(name: str) -> None:
    default = trainbus.TrainingArguments()
    assert trainbus.TrainingArguments(**{name: None}) == default
    if name in OLDER:
        cls = dataclasses.make_dataclass("Mine", [(name, Any, None)], bases=(trainbus.TrainingArguments,))
        args = cls(output_dir="x")
        assert getattr(args, name) == getattr(default, name)
        assert args.given == {"output_dir"} | ({name} if name in args.given else set())


def test_accelerator_config_is_an_object_with_the_keys_of_transformers(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"non_blocking": true}')
    fields = {field.name: field.default for field in dataclasses.fields(TheirConfig)}
    assert {field.name: field.default for field in dataclasses.fields(AcceleratorConfig)} == fields
    expected = AcceleratorConfig(non_blocking=True)
    for given in (file, str(file), expected, TheirConfig(non_blocking=True), {"non_blocking": True}):
        assert trainbus.TrainingArguments(accelerator_config=given).accelerator_config == expected
    assert AcceleratorConfig.from_json_file(file) == expected
    assert trainbus.TrainingArguments(accelerator_config={"use_configured_state": True}).given == {"accelerator_config"}


@pytest.mark.parametrize("config", [AcceleratorConfig, TheirConfig])
def test_accelerator_config_that_is_a_class_is_refused(config: type) -> None:
    with pytest.raises(ArgumentError, match="it takes AcceleratorConfig"):
        trainbus.TrainingArguments(accelerator_config=config)


def test_accumulation_of_the_accelerator_config_is_that_of_the_arguments() -> None:
    def built(steps: int, config: int) -> trainbus.TrainingArguments:
        kwargs = {"num_steps": config, "sync_each_batch": True}
        return trainbus.TrainingArguments(
            gradient_accumulation_steps=steps, accelerator_config={"gradient_accumulation_kwargs": kwargs}
        )

    args = built(1, 10)
    assert args.gradient_accumulation_steps == 10
    assert dataclasses.replace(args, seed=1).gradient_accumulation_steps == 10
    with pytest.raises(ArgumentError, match="The `AcceleratorConfig`'s `num_steps` is set but"):
        built(2, 10)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"split_batches": True}, "divide"), ({"even_batches": False}, "block"), ({"dispatch_batches": True}, "itself")],
)
def test_settings_of_batches_need_a_single_process(settings, said, monkeypatch) -> None:
    assert trainbus.TrainingArguments(accelerator_config=settings).accelerator_config == AcceleratorConfig(**settings)
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    monkeypatch.setitem(os.environ, "RANK", "0")
    with pytest.raises(ArgumentError, match=said):
        trainbus.TrainingArguments(accelerator_config=settings, use_cpu=True)


def test_best_strategy_without_a_metric_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`save_strategy='best'` needs `metric_for_best_model`"):
        trainbus.TrainingArguments(save_strategy="best", eval_strategy="epoch")
    given = {"save_strategy": "best", "eval_strategy": "epoch"}
    assert trainbus.TrainingArguments(**given, metric_for_best_model="f1").greater_is_better
    assert trainbus.TrainingArguments(**given, load_best_model_at_end=True).metric_for_best_model == "loss"
