"""The arguments: Transformers' names, defaults and semantics, and errors that list everything wrong at once."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import logging
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest
from torch import nn

from trainbus import Trainer
from trainbus.engine.arguments import (
    ALIASES,
    OPTIMIZERS,
    SCHEDULES,
    AcceleratorConfig,
    IntervalStrategy,
    SaveStrategy,
    TrainingArguments,
)
from trainbus.engine.arguments._base import Group, default_of
from trainbus.engine.arguments._names import OptimizerNames, SchedulerType
from trainbus.engine.arguments.unsupported import unsupported_arguments, unsupported_values
from trainbus.events.errors import ArgumentError

FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments)}
GROUPS = [base for base in TrainingArguments.__bases__ if issubclass(base, Group)]

OURS_ALONE = {
    *("logging_dir", "sharded_ddp", "warmup_ratio", "overwrite_output_dir", "past_index", "fp16_opt_level"),
    *("do_export", "minimum_eval_times", "scale_loss", "sharding", "sharding_degree"),
    *(
        "max_time",
        "on_save_error",
        "async_save",
        "link_unchanged",
        "max_shard_size",
        "resume_partial",
        "deepspeed_fill_sections",
    ),
    *("learning_rates", "limit_train_batches", "limit_eval_batches", "fast_dev_run", "eval_rows"),
    *(
        "gradient_accumulation_schedule",
        "callbacks",
        "plugins",
        "record",
        "plan",
        "stall_after",
        "capsule",
        "dry_batch",
    ),
}
"""Fields that Transformers 5.23 does not have: those it once had, those of PaddleNLP, and those of nobody else."""

ARGUMENTS, VALUES = unsupported_arguments(), unsupported_values()

THEIRS_ALONE = set(ARGUMENTS)
"""Fields of Transformers that are unknown here, under any name."""

OTHER_DEFAULTS = {
    "logging_nan_inf_filter": "a NaN is shown, not hidden",
    "project": "a tracker's own setting stands, rather than a project called huggingface",
    "report_to": "None: a `logging_dir` alone selects TensorBoard",
    "restore_callback_states_from_checkpoint": "a resumed run is the unbroken one",
}
"""Fields with another default than Transformers', and why."""


@dataclasses.dataclass
class Extended(TrainingArguments):
    """What users write: a subclass with a field of its own, and so with an `__init__` generated anew."""

    temperature: float = 1.0


def refused(**values):
    """The message of the error that `values` raise."""
    with pytest.raises(ArgumentError) as caught:
        TrainingArguments(**values)
    return str(caught.value)


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


# The catalogue of fields.


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
def test_every_field_has_a_docstring(field):
    help = field.metadata["help"]
    assert help.endswith(".")
    assert help[0].isupper()


def test_no_field_is_declared_in_two_groups():
    declared = Counter(name for group in GROUPS for name in vars(group).get("__annotations__", {}))
    assert [name for name, times in declared.items() if times > 1] == []
    assert declared.keys() == FIELDS.keys()


def test_every_group_explains_itself():
    assert [group.__name__ for group in GROUPS if not (group.__doc__ or "").endswith(".")] == []


def test_the_reference_page_starts_with_the_output_folder():
    assert next(iter(FIELDS)) == "output_dir"


def test_names_are_those_of_transformers(transformers):
    theirs = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert FIELDS.keys() - theirs == OURS_ALONE
    assert theirs - FIELDS.keys() - ALIASES.keys() == THEIRS_ALONE


def test_defaults_are_those_of_transformers(transformers):
    theirs = {field.name: default_of(field) for field in dataclasses.fields(transformers.TrainingArguments)}
    theirs["output_dir"] = "trainer_output"  # None there, and filled in when the instance is made
    theirs["gradient_checkpointing"] = False  # the same
    other = {name for name in FIELDS.keys() & theirs.keys() if default_of(FIELDS[name]) != theirs[name]}
    assert other == OTHER_DEFAULTS.keys()


def test_aliases_name_fields_and_hide_no_field():
    without_effect = {name for name, alias in ALIASES.items() if not alias.new}
    assert without_effect == {
        "fp16_backend",
        "half_precision_backend",
        "save_safetensors",
        "use_legacy_prediction_loop",
    }
    assert {alias.new for name, alias in ALIASES.items() if name not in without_effect} <= FIELDS.keys()
    assert not ALIASES.keys() & FIELDS.keys()


def test_names_of_schedules_are_those_of_transformers(transformers):
    assert set(SCHEDULES) == {member.value for member in transformers.SchedulerType}


# Values that other fields decide.

SETTINGS = [
    {},
    {"eval_strategy": "steps"},
    {"eval_strategy": "steps", "logging_steps": 20},
    {"eval_strategy": "steps", "eval_steps": 7},
    {"eval_strategy": "steps", "eval_steps": 0},
    {"eval_strategy": "epoch"},
    {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
    {"eval_strategy": "epoch", "metric_for_best_model": "accuracy"},
    {"eval_strategy": "epoch", "metric_for_best_model": "eval_loss"},
    {"eval_strategy": "epoch", "metric_for_best_model": "accuracy", "greater_is_better": False},
    {"eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau"},
    {"eval_strategy": "epoch", "lr_scheduler_type": "greedy"},
    {"lr_scheduler_kwargs": '{"num_cycles": 2}'},
]


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_an_instance_reads_as_transformers_does(transformers, values):
    ours, theirs = TrainingArguments(**values), transformers.TrainingArguments(**values)
    # Fields that Transformers rewrites, and that have properties here or are read where they are used.
    rewritten = {"report_to", "disable_tqdm", "debug", "accelerator_config"}
    for name in FIELDS.keys() - OURS_ALONE - OTHER_DEFAULTS.keys() - rewritten:
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_given_holds_the_arguments_of_the_user(values):
    written = {name for name, value in values.items() if (name, value) != ("eval_steps", 0)}  # 0 is "not given"
    assert TrainingArguments(**values).given == written


def test_given_survives_a_copy_with_changes():
    args = TrainingArguments(eval_strategy="steps", load_best_model_at_end=True)
    assert args.metric_for_best_model == "loss"
    assert dataclasses.replace(args, seed=1).given == {"eval_strategy", "load_best_model_at_end", "seed"}


def test_given_tells_an_explicit_none_from_a_default():
    assert TrainingArguments(max_grad_norm=None).given == {"max_grad_norm"}


def test_the_default_of_a_subclass_stands():
    @dataclasses.dataclass
    class Patient(TrainingArguments):
        eval_steps: float | None = 100

    args = Patient(eval_strategy="steps")
    assert args.eval_steps == 100
    assert args.given == {"eval_strategy"}


# Spelling of values.


def test_paths_are_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert TrainingArguments("~/run").output_dir == "/home/ada/run"
    assert TrainingArguments(Path("out") / "run").output_dir == "out/run"
    assert TrainingArguments(output_dir=None).output_dir == "trainer_output"
    assert TrainingArguments(resume_from_checkpoint=True).resume_from_checkpoint is True


@pytest.mark.parametrize("kind", [IntervalStrategy, SaveStrategy])
def test_strategies_are_strings_and_equal_to_those_of_transformers(transformers, kind):
    theirs = getattr(transformers.trainer_utils, kind.__name__)
    assert [member.value for member in kind] == [member.value for member in theirs]
    for member, other in zip(kind, theirs):
        assert member == other
        assert other == member
        assert hash(member) == hash(other)
        assert member == member.value == str(member) == f"{member}" == json.loads(json.dumps(member))
    assert IntervalStrategy.EPOCH != theirs.STEPS
    assert IntervalStrategy.EPOCH == SaveStrategy.EPOCH


def test_strategies_become_enums(transformers):
    args = TrainingArguments(
        eval_strategy="epoch",
        save_strategy="best",
        metric_for_best_model="loss",
        logging_strategy=transformers.IntervalStrategy.EPOCH,
        lr_scheduler_type=transformers.SchedulerType.COSINE,
        optim=transformers.training_args.OptimizerNames.SGD,
    )
    assert args.eval_strategy is IntervalStrategy.EPOCH
    assert args.save_strategy is SaveStrategy.BEST
    assert args.logging_strategy is IntervalStrategy.EPOCH
    assert args.lr_scheduler_type is SchedulerType.COSINE
    assert args.optim is OptimizerNames.SGD


def test_a_bare_no_of_yaml_is_no():
    assert TrainingArguments(save_strategy=False).save_strategy is SaveStrategy.NO


def test_a_callback_of_transformers_reads_the_arguments(transformers):
    args = TrainingArguments(eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=1)
    stopping.on_train_begin(args, state, control)
    stopping.on_evaluate(args, state, control, metrics={"eval_loss": 1.0})
    state.best_metric = 1.0
    stopping.on_evaluate(args, state, control, metrics={"eval_loss": 2.0})
    assert control.should_training_stop


# Spelling of names.


@pytest.mark.parametrize("kind", [TrainingArguments, Extended])
def test_misspelt_names_are_refused_all_at_once(kind):
    with pytest.raises(ArgumentError) as caught:
        kind(learnin_rate=1, eval_step=3, zzz=1, max_steps=-5)
    assert "`learnin_rate` is not an argument; did you mean 'learning_rate'?" in str(caught.value)
    assert "`eval_step` is not an argument; did you mean 'eval_steps'?" in str(caught.value)
    assert "`zzz` is not an argument." in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kind", [TrainingArguments, Extended])
def test_outdated_names_are_taken_with_one_warning(kind):
    with pytest.warns(FutureWarning) as caught:
        args = kind(evaluation_strategy="epoch", no_cuda=True, per_gpu_train_batch_size=2, recompute=True)
    (warning,) = caught
    assert "`evaluation_strategy` is now `eval_strategy`" in str(warning.message)
    assert "`no_cuda` is now `use_cpu`" in str(warning.message)
    assert warning.filename == __file__
    assert args.given == {"eval_strategy", "use_cpu", "per_device_train_batch_size", "gradient_checkpointing"}


def test_the_name_that_transformers_prefers_is_taken_silently():
    args = TrainingArguments(activation_checkpointing=True, activation_checkpointing_kwargs={"use_reentrant": False})
    assert args.gradient_checkpointing
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}


def test_two_names_may_agree_but_not_differ():
    assert TrainingArguments(activation_checkpointing=True, gradient_checkpointing=True).gradient_checkpointing
    message = refused(eval_strategy="no", evaluation_strategy="steps", activation_checkpointing=True, recompute=False)
    assert "`evaluation_strategy` is 'steps', but `eval_strategy` is 'no'" in message
    assert "`recompute` is False, but `activation_checkpointing` is True" in message


def test_none_for_an_outdated_name_counts_as_unset():
    with pytest.warns(FutureWarning):
        args = TrainingArguments(per_gpu_train_batch_size=None, per_device_train_batch_size=4)
    assert args.per_device_train_batch_size == 4


@pytest.mark.parametrize(
    ("other", "value", "name", "expected"),
    [
        ("adafactor", True, "optim", "adafactor"),
        ("adafactor", False, "optim", "adamw_torch_fused"),
        ("device", "cpu", "use_cpu", True),
        ("device", "gpu", "use_cpu", False),
        ("evaluate_during_training", True, "eval_strategy", "steps"),
        ("evaluate_during_training", False, "eval_strategy", "no"),
        ("group_by_length", True, "train_sampling_strategy", "group_by_length"),
        ("group_by_length", False, "train_sampling_strategy", "random"),
        ("include_inputs_for_metrics", True, "include_for_metrics", ["inputs"]),
        ("include_tokens_per_second", True, "include_num_input_tokens_seen", "all"),
        ("push_to_hub_model_id", "ada/model", "hub_model_id", "ada/model"),
        ("torchdynamo", "eager", "torch_compile_backend", "eager"),
        ("train_batch_size", 3, "per_device_train_batch_size", 3),
        ("xpu_backend", "gloo", "ddp_backend", "gloo"),
    ],
)
def test_an_alias_keeps_its_meaning_from_other_libraries(other, value, name, expected):
    with pytest.warns(FutureWarning, match=f"`{other}` is now `{name}`"):
        args = TrainingArguments(**{other: value})
    assert getattr(args, name) == expected


def test_aliases_without_effect_warn():
    with pytest.warns(FutureWarning, match="`fp16_backend` has no effect; remove it") as caught:
        args = TrainingArguments(fp16_backend="auto", save_safetensors=True, use_legacy_prediction_loop=False)
    assert len(caught) == 1
    assert args == TrainingArguments()


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("save_safetensors", False, "it takes True"),
        ("fp16_backend", "apex", "it takes 'auto', 'amp', 'cpu_amp'"),
        ("half_precision_backend", "apex", "it takes 'auto', 'amp', 'cpu_amp'"),
        ("device", "tpu", "it takes 'cpu', 'gpu', 'cuda'"),
        ("adafactor", "yes", "it takes True, False"),
    ],
)
def test_values_of_other_names_are_checked(name, value, takes):
    assert f"`{name}` is {value!r}; {takes}." in refused(**{name: value})


@pytest.mark.parametrize(("name", "value"), VALUES, ids=str)
def test_unsupported_value_raises_with_an_alternative(name, value, tmp_path):
    remedy = re.escape(VALUES[name, value])
    with pytest.raises(ArgumentError, match=rf"{name}.*{value}.*{remedy}"):
        Trainer(nn.Linear(2, 2), TrainingArguments(str(tmp_path), use_cpu=True, **{name: value}))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_unsupported_argument_raises_with_an_alternative(name):
    assert ARGUMENTS[name] in refused(**{name: object()})
    assert TrainingArguments(**{name: None}) == TrainingArguments()


def test_a_contradiction_shows_both_values():
    message = refused(adafactor=True, optim="sgd", device="gpu", use_cpu=True)
    assert "`adafactor` is True, but `optim` is 'sgd'; set only `optim`." in message
    assert "`device` is 'gpu', but `use_cpu` is True; set only `use_cpu`." in message
    assert "`no_cuda` is True, but `device` is 'gpu'; set only `use_cpu`." in refused(device="gpu", no_cuda=True)


def test_only_the_output_folder_is_positional():
    assert TrainingArguments("out").output_dir == "out"
    with pytest.raises(TypeError):
        TrainingArguments("out", 8)


def test_the_signature_lists_the_fields():
    assert [*inspect.signature(TrainingArguments).parameters] == [*FIELDS]


def test_a_subclass_may_write_its_own_init():
    class Preset(TrainingArguments):
        def __init__(self, size, **others):
            super().__init__(per_device_train_batch_size=size, **others)

    assert Preset(3, seed=1).given == {"per_device_train_batch_size", "seed"}
    with pytest.warns(FutureWarning):
        assert Preset(3, no_cuda=True).use_cpu


# What is refused.


@pytest.mark.parametrize(
    "values",
    [
        {"per_device_train_batch_size": 0},
        {"per_device_eval_batch_size": -1},
        {"gradient_accumulation_steps": 0},
        {"num_train_epochs": -1.0},
        {"num_train_epochs": float("nan")},
        {"max_steps": 0},
        {"max_steps": -2},
        {"learning_rate": -1e-3},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"weight_decay": -0.1},
        {"adam_beta1": 1.0},
        {"adam_beta2": -0.1},
        {"adam_epsilon": -1e-8},
        {"max_grad_norm": -1.0},
        {"label_smoothing_factor": 1.0},
        {"optim_args": "alpha"},
        {"optim": "adamm"},
        {"lr_scheduler_type": "linaer"},
        {"lr_scheduler_type": "greedy"},
        {"warmup_steps": -1},
        {"warmup_steps": 1.5},
        {"warmup_ratio": 1.1},
        {"logging_strategy": "step"},
        {"logging_steps": 0},
        {"logging_steps": -1},
        {"logging_steps": 2.5},
        {"eval_strategy": "stepps"},
        {"eval_steps": -1},
        {"eval_steps": 1.5},
        {"eval_delay": -1},
        {"eval_accumulation_steps": 0},
        {"include_for_metrics": ["outputs"]},
        {"save_strategy": "bets"},
        {"save_strategy": "best"},
        {"save_steps": 0},
        {"save_steps": -5},
        {"save_steps": float("inf")},
        {"save_total_limit": 0},
        {"load_best_model_at_end": True},
        {"dataloader_num_workers": -1},
        {"dataloader_prefetch_factor": 2},
        {"dataloader_persistent_workers": True},
        {"seed": -1},
        {"seed": 2**32},
        {"ddp_timeout": 0},
        {"ddp_bucket_cap_mb": 0},
        {"sharded_ddp": "zero"},
        {"sharding": "stage4"},
        {"sharding": "stage1 offload"},
        {"sharding": "offload"},
        {"sharding": "stage1 stage2"},
        {"sharding_degree": 0},
        {"sharding_degree": -2},
        {"deepspeed": "absent.json"},
        {"auto_find_batch_size": "yes"},
        {"minimum_eval_times": 0},
        {"batch_eval_metrics": 1},
        {"eval_use_gather_object": "no"},
        {"dataloader_in_order": "yes"},
        {"dataloader_multiprocessing_context": "thread"},
        {"train_sampling_strategy": "length"},
        {"accelerator_config": "absent.json"},
        {"accelerator_config": {"split_batch": True}},
        {"accelerator_config": {"use_seedable_sampler": False}},
        {"accelerator_config": "[1]"},
        {"log_level": "loud"},
        {"log_level_replica": 10},
        {"log_on_each_node": None},
        {"save_on_each_node": 1},
        {"fp16_opt_level": "O3"},
        {"scale_loss": 0.0},
        {"scale_loss": float("nan")},
        {"tf32": "yes"},
        {"bf16_full_eval": "yes"},
        {"torch_empty_cache_steps": 0},
        {"include_num_input_tokens_seen": "padding"},
        {"skip_memory_metrics": None},
        {"debug": "overflow"},
        {"neftune_noise_alpha": -1.0},
        {"neftune_noise_alpha": float("inf")},
        {"past_index": -2},
        {"past_index": 0},
        {"torch_compile_backend": "inducter"},
        {"torch_compile_mode": "fast"},
        {"enable_jit_checkpoint": "yes"},
        {"restore_callback_states_from_checkpoint": None},
        # Wrong types.
        {"max_steps": "10"},
        {"max_steps": 10.0},
        {"seed": None},
        {"seed": True},
        {"learning_rate": "5e-5"},
        {"fp16": "true"},
        {"bf16": 1},
        {"eval_strategy": None},
        {"label_names": "labels"},
        {"label_names": [1]},
        {"lr_scheduler_kwargs": "{min_lr: 1}"},
        {"lr_scheduler_kwargs": "[1]"},
        {"sharded_ddp": 1},
        {"output_dir": 3},
    ],
    ids=str,
)
def test_a_bad_value_is_named_with_its_field(values):
    ((name, value),) = values.items()
    message = refused(**values)
    assert f"`{name}" in message
    assert "\n" not in message, "one mistake, one problem"
    assert str(next(iter(value)) if isinstance(value, dict) else value) in message


def test_a_file_is_read_where_one_may_stand(tmp_path):
    file, wrong, listed = (tmp_path / name for name in ("right.json", "wrong.json", "listed.json"))
    file.write_text('{"non_blocking": true}')
    wrong.write_text("{")
    listed.write_text("[1]")
    assert TrainingArguments(accelerator_config=str(file)).non_blocking
    assert TrainingArguments(accelerator_config='{"non_blocking": true}').non_blocking
    assert TrainingArguments(accelerator_config={"non_blocking": True, "even_batches": True}).non_blocking
    assert not TrainingArguments().non_blocking
    for path in (wrong, listed):
        assert f"`accelerator_config` is {str(path)!r}, which cannot be read as JSON" in refused(
            accelerator_config=str(path)
        )
    assert TrainingArguments(deepspeed=str(file)).deepspeed == str(file)
    file.write_text('{"version": 2}')
    assert TrainingArguments(fsdp=True, fsdp_config=str(file)).fsdp_config == str(file)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"fsdp_config": {"version": 2}}, "`fsdp_config` is set, but `fsdp` is not; set `fsdp=True`."),
        (
            {"sharding": "stage2", "sharded_ddp": "simple"},
            "`sharded_ddp='simple'` and `sharding='stage2'` select different",
        ),
        (
            {"fsdp": True, "fsdp_config": "absent.json"},
            "`fsdp_config` is 'absent.json', which is neither JSON nor a file",
        ),
        ({"fsdp": True, "deepspeed": {"zero": 1}}, "`fsdp=True` and `deepspeed="),
        ({"bf16_full_eval": True, "fp16_full_eval": True}, "`bf16_full_eval` and `fp16_full_eval` are both True"),
        ({"liger_kernel_config": {"rope": True}}, "`liger_kernel_config` is set, but `use_liger_kernel` is False"),
        ({"sharding": "stag2 offload"}, "`sharding` is 'stag2 offload'; did you mean 'stage2'?"),
        ({"torch_compile_backend": "inducter"}, "did you mean 'inductor'?"),
    ],
    ids=str,
)
def test_conflicting_arguments_raise(values, said):
    message = refused(**values)
    assert said in message
    assert "\n" not in message


def test_both_precisions_are_refused():
    assert "`bf16` and `fp16`" in refused(bf16=True, fp16=True)


def test_evaluation_by_steps_needs_to_know_how_many():
    message = refused(eval_strategy="steps", logging_strategy="epoch", logging_steps=0, eval_steps=0)
    assert "`eval_steps` and `logging_steps` are both 0" in message


def test_all_problems_are_reported_at_once():
    message = refused(max_steps="ten", optim="adamm", adam_beta1=2.0, bf16=True, fp16=True, save_strategy="best")
    assert message.startswith("5 problems:")
    assert "`max_steps` is 'ten' (str); it takes int." in message
    assert "`optim` is 'adamm'; did you mean 'adamw'? Known: 'adamw_torch_fused', 'adamw_torch'" in message
    assert "`adam_beta1` is 2.0" in message
    assert "`bf16` and `fp16`" in message
    assert "`save_strategy='best'` needs evaluations" in message


@pytest.mark.parametrize(
    "values",
    [
        {"warmup_steps": 0.1},
        {"logging_steps": 0.5},
        {"save_steps": 100.0},
        {"num_train_epochs": 1},
        {"max_grad_norm": 0},
        {"max_grad_norm": None},
        {"save_total_limit": 1},
        {"optim_args": "alpha=0.9,eps=1e-6"},
        {"label_names": ("labels",)},
        {"logging_strategy": "no", "logging_steps": 0},
        {"save_strategy": "no", "save_steps": 0},
        {"eval_strategy": "steps", "eval_steps": 30, "save_steps": 40, "load_best_model_at_end": True},
        {"eval_strategy": "steps", "save_strategy": "epoch", "load_best_model_at_end": True},
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 4, "dataloader_persistent_workers": True},
        {"sharded_ddp": "simple"},
        *({"sharding": value} for value in ("", "stage1", "stage2 offload", "offload stage3")),
        {"sharding": "stage1", "sharding_degree": 2},
        {"sharded_ddp": ["zero_dp_2", "offload"]},
        {"fsdp": True, "fsdp_config": {"version": 2}},
        {"fsdp": "full_shard auto_wrap"},
        {"deepspeed": {"zero_optimization": {"stage": 2}}},
        {"accelerator_config": AcceleratorConfig(even_batches=True, dispatch_batches=None)},
        {"dataloader_multiprocessing_context": "spawn"},
        {"debug": ["underflow_overflow"]},
        {"include_num_input_tokens_seen": "all"},
        {"torch_compile_backend": "aot_eager", "torch_compile_mode": "default"},
        {"minimum_eval_times": 1},
        {"past_index": 1},
        *({"optim": name} for name in OPTIMIZERS),
    ],
    ids=str,
)
def test_a_good_value_stays_as_it_was_written(values):
    args = TrainingArguments(**values)
    assert {name: getattr(args, name) for name in values} == values


def test_numbers_of_numpy_are_numbers():
    np = pytest.importorskip("numpy")
    args = TrainingArguments(max_steps=np.int64(3), learning_rate=np.float32(0.5))
    assert (args.max_steps, args.learning_rate) == (3, 0.5)


def test_values_changed_later_can_be_checked_again():
    args = TrainingArguments()
    assert [*args.problems()] == []
    with pytest.raises(ArgumentError, match="`save_steps` is -1"):
        args.save_steps = -1
    args.load_best_model_at_end = True  # a conflict with another field may end with the next assignment
    assert len([*args.problems()]) == 1


# Properties.


@pytest.mark.parametrize("warmup", [0, 0.03, 0.5, 1, 7, 7.0])
def test_warmup_is_counted_as_transformers_does(transformers, warmup):
    ours, theirs = TrainingArguments(warmup_steps=warmup), transformers.TrainingArguments(warmup_steps=warmup)
    for steps in (1, 10, 99, 1000):
        assert ours.get_warmup_steps(steps) == theirs.get_warmup_steps(steps)


def test_warmup_steps_win_over_the_ratio():
    assert TrainingArguments(warmup_ratio=0.1).get_warmup_steps(55) == 6
    assert TrainingArguments(warmup_ratio=0.1, warmup_steps=3).get_warmup_steps(55) == 3


def test_one_process_is_the_default():
    args = TrainingArguments(use_cpu=True)
    assert (args.world_size, args.process_index, args.local_process_index, args.n_gpu) == (1, 0, 0, 0)
    assert args.device.type == "cpu"
    assert args.should_log
    assert args.should_save
    assert TrainingArguments(local_rank=2).local_process_index == 2


def test_the_launcher_sets_the_rank(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    args = TrainingArguments(local_rank=1)
    assert (args.world_size, args.process_index, args.local_process_index) == (4, 2, 0)
    assert args.should_log
    assert not args.should_save


@pytest.mark.parametrize(
    ("rank", "local_rank", "values", "logs", "saves"),
    [
        (0, 0, {}, True, True),
        (1, 1, {}, False, False),
        (2, 0, {}, True, False),
        (2, 0, {"log_on_each_node": False}, False, False),
        (2, 0, {"save_on_each_node": True}, True, True),
        (0, 0, {"log_on_each_node": False, "save_on_each_node": True}, True, True),
        (3, 1, {"log_on_each_node": False, "save_on_each_node": True}, False, False),
    ],
)
def test_each_rank_logs_and_saves_as_the_arguments_say(monkeypatch, rank, local_rank, values, logs, saves):
    """Of four processes on two machines."""
    for name, value in (("WORLD_SIZE", 4), ("RANK", rank), ("LOCAL_RANK", local_rank)):
        monkeypatch.setenv(name, str(value))
    args = TrainingArguments(log_level="debug", log_level_replica="error", **values)
    assert (args.should_log, args.should_save) == (logs, saves)
    assert args.own_log_level == ("debug" if logs else "error")
    assert args.get_process_log_level() == (logging.DEBUG if logs else logging.ERROR)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_levels_are_those_of_transformers(transformers, level):
    ours, theirs = TrainingArguments(log_level=level), transformers.TrainingArguments(log_level=level)
    assert ours.get_process_log_level() == theirs.get_process_log_level()


def test_passive_is_the_level_there_is(monkeypatch):
    monkeypatch.setattr(logging.getLogger("trainbus"), "level", logging.ERROR)
    logging.getLogger("trainbus").manager._clear_cache()
    assert TrainingArguments().get_process_log_level() == logging.ERROR


def test_each_process_has_its_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    args = TrainingArguments()
    assert (str(args.device), args.n_gpu) == ("cuda:3", 1)
    assert TrainingArguments(use_cpu=True).device.type == "cpu"


@pytest.mark.parametrize(
    ("report_to", "trackers"),
    [
        ("none", []),
        (None, []),
        (["none"], []),
        ("all", ["wandb", "tensorboard"]),
        ("wandb", ["wandb"]),
        (["a", "b"], ["a", "b"]),
        (["comet", "csv"], ["comet_ml", "csv"]),
    ],
)
def test_trackers_are_a_list(report_to, trackers, monkeypatch):
    installed = {"wandb", "tensorboard"}
    monkeypatch.setattr("trainbus.engine.arguments.reporting.find_spec", lambda name: name in installed or None)
    assert TrainingArguments(report_to=report_to).trackers == trackers


@pytest.mark.parametrize(("value", "option"), [("", ""), (False, ""), (True, "simple"), ("simple", "simple")])
def test_sharded_ddp_has_a_name(value, option):
    assert TrainingArguments(sharded_ddp=value).sharded_ddp_option == option


# As a record.


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "replace": dataclasses.replace,
    "pickle": lambda args: pickle.loads(pickle.dumps(args)),
    "dict": lambda args: type(args)(**args.to_dict()),
    "json": lambda args: type(args)(**json.loads(args.to_json_string())),
    "repr": lambda args: eval(repr(args)),
}


@pytest.mark.parametrize("kind", [TrainingArguments, Extended])
@pytest.mark.parametrize("through", COPIES.values(), ids=COPIES.keys())
def test_a_copy_is_equal(through, kind):
    args = kind("out", eval_strategy="steps", eval_steps=5, load_best_model_at_end=True, lr_scheduler_kwargs={"a": [1]})
    other = through(args)
    assert other == args
    assert other.given == args.given
    assert other.eval_strategy is IntervalStrategy.STEPS
    assert dataclasses.replace(other, seed=7) != args


def test_mutable_defaults_are_not_shared():
    TrainingArguments().include_for_metrics.append("loss")
    assert TrainingArguments().include_for_metrics == []


def test_repr_shows_the_set_values():
    args = TrainingArguments("out", learning_rate=1e-3, eval_strategy="epoch")
    assert repr(args) == "TrainingArguments(output_dir='out', learning_rate=0.001, eval_strategy='epoch')"


def test_the_sanitized_dictionary_holds_plain_values(transformers):
    args = TrainingArguments(eval_strategy="epoch", label_names=["labels"])
    theirs = transformers.TrainingArguments(eval_strategy="epoch", label_names=["labels"]).to_sanitized_dict()
    values = args.to_sanitized_dict()
    assert {type(value) for value in values.values()} <= {bool, int, float, str}
    assert values["train_batch_size"] == theirs["train_batch_size"] == 8
    assert values["label_names"] == theirs["label_names"] == "['labels']"


def test_tokens_are_masked():
    @dataclasses.dataclass
    class Secretive(TrainingArguments):
        hub_token: str | None = None

    args = Secretive(hub_token="hf_secret")
    assert args.to_dict()["hub_token"] == "<HUB_TOKEN>"
    assert "hf_secret" not in repr(args)
