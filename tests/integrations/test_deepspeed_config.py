"""DeepSpeed's configuration is filled from the arguments, as transformers fills it where both support "auto"."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainbus import TrainingArguments
from trainbus.events import ArgumentError
from trainbus.integrations.deepspeed.config import (
    RunSizes,
    complete_config,
    hidden_size_of,
    precision_of,
    read_config,
    stage_of,
)

SIZES = RunSizes(batch_size=8, world_size=2, total_steps=100)

WARMUP = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
OPEN = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True},
    },
    "scheduler": {"type": "WarmupDecayLR", "params": {**WARMUP, "total_num_steps": "auto"}},
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "overlap_comm": False,
    },
    "steps_per_print": 2000,
}
"""A configuration with "auto" wherever it is possible."""


def arguments(**options):
    return TrainingArguments("out", use_cpu=True, **options)


def changed(**values):
    """Return `OPEN` with other values. A key has `__` in place of dots."""
    config = read_config(OPEN)
    for key, value in values.items():
        *path, name = key.split("__")
        section = config
        for part in path:
            section = section[part]
        section[name] = value
    return config


@pytest.fixture(scope="module")
def theirs():
    """A function that returns transformers' completed configuration, and the keys that transformers finds wrong."""
    pytest.importorskip("deepspeed")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    def fill(config, args, sizes):
        hf = HfTrainerDeepSpeedConfig(config)
        same = SimpleNamespace(**{**vars(args), "world_size": sizes.world_size})
        same.get_warmup_steps = args.get_warmup_steps
        hf.trainer_config_process(same, args.auto_find_batch_size)
        model = SimpleNamespace(config=SimpleNamespace(hidden_size=sizes.hidden_size))
        try:
            hf.trainer_config_finalize(same, model, sizes.total_steps)
        except ValueError as error:
            return hf.config, re.findall(r"^- ds (\S+?)=", str(error), re.MULTILINE)
        return hf.config, []

    return fill


FILLED = [
    {},
    {"learning_rate": 3e-5, "adam_beta1": 0.8, "adam_epsilon": 1e-6, "weight_decay": 3e-7},
    {"gradient_accumulation_steps": 4, "max_grad_norm": 0.3},
    {"warmup_steps": 7},
    {"warmup_steps": 0.25},
    {"bf16": True},
    {"fp16": True},
    {"bf16_full_eval": True},
]


@pytest.mark.parametrize("options", FILLED, ids=lambda options: "-".join(options) or "defaults")
def test_auto_is_filled_as_transformers_fills_it(theirs, options):
    args, sizes = arguments(**options), replace(SIZES, hidden_size=64)
    completed, wrong = theirs(OPEN, args, sizes)
    assert wrong == []
    assert complete_config(OPEN, args, sizes) == completed


GIVEN = {
    "learning_rate": 3e-5,
    "weight_decay": 0.1,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-6,
    "max_grad_norm": 0.3,
    "warmup_steps": 10,
    "bf16": True,
}
"""Arguments that are set, so that other values in the configuration are errors here and in transformers."""

WRONG = [
    {"optimizer__params__lr": 1e-3},
    {"optimizer__params__betas": [0.8, 0.9], "optimizer__params__eps": 1e-8, "optimizer__params__weight_decay": 0.0},
    {"gradient_clipping": 1.0, "gradient_accumulation_steps": 2},
    {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32},
    {"scheduler__params__warmup_max_lr": 1e-3, "scheduler__params__total_num_steps": 5},
    {"scheduler__params__warmup_num_steps": 3, "bf16__enabled": False, "fp16__enabled": True},
    {"scheduler__params__warmup_min_lr": 1e-6, "zero_optimization__reduce_bucket_size": 5e8},  # neither is an argument
    {"optimizer__params__lr": 3e-5, "gradient_clipping": 0.3},
]


@pytest.mark.parametrize("values", WRONG, ids=lambda values: "-".join(values))
def test_contradictions_are_those_of_transformers(theirs, values):
    config, args, sizes = changed(**values), arguments(**GIVEN), replace(SIZES, hidden_size=64)
    completed, wrong = theirs(config, args, sizes)
    if not wrong:
        assert complete_config(config, args, sizes) == completed
        return
    with pytest.raises(ArgumentError) as caught:
        complete_config(config, args, sizes)
    assert sorted(re.findall(r"^- (\S+) is", str(caught.value), re.MULTILINE)) == sorted(wrong)


def test_a_contradiction_names_both_values_and_the_argument():
    config = changed(optimizer__params__lr=1e-3, train_batch_size=64)
    with pytest.raises(ArgumentError) as caught:
        complete_config(config, arguments(learning_rate=3e-5), replace(SIZES, hidden_size=64))
    said = str(caught.value)
    assert "- optimizer.params.lr is 0.001, but the arguments give 3e-05 (learning_rate=3e-05)" in said
    assert "- train_batch_size is 64, but the arguments give 16 (2 ranks, per_device_train_batch_size=8, " in said
    assert "Write 'auto'" in said


def test_unset_arguments_do_not_contradict_the_configuration():
    config = {
        "gradient_clipping": 0.5,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.9]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 500}},
        "bf16": {"enabled": True},
    }
    completed = complete_config(config, arguments(), SIZES)
    assert {name: completed[name] for name in config} == config


def test_absent_keys_are_filled():
    completed = complete_config({"zero_optimization": {"stage": 2}}, arguments(max_grad_norm=0.7, bf16=True), SIZES)
    assert completed == {
        "zero_optimization": {"stage": 2},
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.7,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


@pytest.mark.parametrize(
    ("argument", "options"), [("bf16", {"check_grad_overflow": False}), ("fp16", {"loss_scale_window": 500})]
)
def test_a_section_without_enabled_is_enabled_by_the_argument(argument, options):
    given = {argument: {**options}}
    completed = complete_config(given, arguments(**{argument: True}), SIZES)
    assert completed[argument] == {**options, "enabled": True}
    assert precision_of(completed) == argument
    assert given == {argument: options}  # the dict of the user does not change
    assert precision_of(complete_config(given, arguments(), SIZES)) == ""
    off = {argument: {**options, "enabled": False}}
    with pytest.raises(ArgumentError, match=f"{argument}.enabled is False, but the arguments give True"):
        complete_config(off, arguments(**{argument: True}), SIZES)


@pytest.mark.parametrize("section", [{"fp16": {"enabled": True, "hysteresis": 3}}, {"amp": {"enabled": True}}])
def test_a_precision_section_is_kept(section):
    completed = complete_config(section, arguments(fp16=True), SIZES)
    assert {name: completed[name] for name in section} == section
    assert {"fp16", "amp"} & completed.keys() == section.keys()


def test_scale_loss_sets_the_initial_scale_power():
    completed = complete_config({}, arguments(fp16=True, scale_loss=32768.0), SIZES)
    assert completed["fp16"] == {"enabled": True, "initial_scale_power": 15}


def test_bf16_in_the_configuration_contradicts_fp16_in_the_arguments():
    with pytest.raises(ArgumentError, match=r"bf16\.enabled is True, but the arguments give False"):
        complete_config({"bf16": {"enabled": True}}, arguments(fp16=True), SIZES)


def test_total_num_steps_is_filled_for_a_decaying_schedule():
    config = {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5}}}
    assert complete_config(config, arguments(), SIZES)["scheduler"]["params"]["total_num_steps"] == 100


def test_auto_find_batch_size_overrides_the_batch_sizes():
    args = arguments(auto_find_batch_size=True)
    completed = complete_config({"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"}, args, SIZES)
    assert (completed["train_batch_size"], completed["train_micro_batch_size_per_gpu"]) == (16, 8)


def test_unfilled_auto_is_an_error_that_names_the_keys():
    config = changed(optimizer__params__momentum="auto")
    with pytest.raises(ArgumentError) as caught:
        complete_config(config, arguments(), SIZES)
    keys = re.findall(r"^- (\S+) is 'auto'", str(caught.value), re.MULTILINE)
    assert keys == [
        "optimizer.params.momentum",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
    ]


def test_unfilled_auto_is_not_reported_as_a_contradiction():
    config = {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}, "steps_per_print": "auto"}
    with pytest.raises(ArgumentError) as caught:
        complete_config(config, arguments(), SIZES)
    said = str(caught.value)
    assert "reduce_bucket_size is 'auto', and the model's config has no `hidden_size`" in said
    assert "steps_per_print is 'auto', and no argument sets it" in said
    assert "contradict each other" not in said
    assert "Write 'auto'" not in said


def test_null_counts_as_absent():
    config = {"train_batch_size": None, "optimizer": None, "zero_optimization": {"stage": 1, "overlap_comm": None}}
    completed = complete_config(config, arguments(), SIZES)
    assert completed == complete_config({"zero_optimization": {"stage": 1}}, arguments(), SIZES)


def test_total_num_steps_is_not_filled_for_a_torch_schedule():
    config = {"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 5}}}
    assert complete_config(config, arguments(), SIZES)["scheduler"] == config["scheduler"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"zero_optimisation": {"stage": 2}}, "zero_optimisation is unknown; did you mean 'zero_optimization'?"),
        ({"moe": {"enabled": True}}, "moe is unknown."),
        ({"pipeline": {"stages": 2}}, "pipeline is not supported: a pipeline needs"),
        ({"sequence_parallel_size": 2}, "sequence_parallel_size is not supported"),
        ({"zero_optimization": 2}, 'zero_optimization is 2; give a section, such as {"stage": 2}'),
        ({"bf16": True}, 'bf16 is True; give a section, such as {"enabled": true}'),
        ({"bf16": {"enabled": "yes"}}, "bf16.enabled is 'yes'; give true, false"),
        ({"optimizer": "AdamW"}, "optimizer is 'AdamW'; give a section"),
        ({"optimizer": {"params": {}}}, "optimizer.type is None; give a name"),
        ({"optimizer": {"type": "Adam", "params": []}}, "optimizer.params is []; give a section"),
        ({"optimizer": {"type": "Adam", "parms": {}}}, "optimizer.parms is unknown; did you mean 'params'?"),
        ({"scheduler": "WarmupLR"}, "scheduler is 'WarmupLR'; give a section"),
        ({"gradient_clipping": {"value": 1}}, "gradient_clipping is {'value': 1}; give a single value"),
        *(
            ({"zero_optimization": {"stage": stage}}, f"stage is {stage!r}; give 0, 1")
            for stage in (-1, 4, "auto", True)
        ),
    ],
)
def test_an_invalid_key_is_an_error_that_names_it(config, said):
    with pytest.raises(ArgumentError) as caught:
        complete_config(config, arguments(), SIZES)
    assert said in str(caught.value)


def test_all_schema_errors_are_reported_together():
    with pytest.raises(ArgumentError) as caught:
        complete_config({"bf16": True, "optimizer": "AdamW", "steps": 3}, arguments(), SIZES)
    assert len(re.findall("^- ", str(caught.value), re.MULTILINE)) == 3


@pytest.mark.parametrize("config", [{"tensor_parallel": {"autotp_size": 1}}, {"data_efficiency": {"enabled": False}}])
def test_a_disabled_unsupported_section_is_allowed(config):
    assert config.items() <= complete_config(config, arguments(), SIZES).items()


def test_the_given_configuration_is_not_changed():
    config = read_config(OPEN)
    complete_config(config, arguments(), replace(SIZES, hidden_size=64))
    assert config == OPEN
    read_config(config)["zero_optimization"]["stage"] = 1
    assert config == OPEN


def test_a_configuration_is_read_from_a_file(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(OPEN))
    assert read_config(str(path)) == read_config(path) == OPEN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "fp16": {"enabled": true,},\n}', r"ds\.json, line 2, column \d+ is not valid JSON"),
        ("[1]", "ds.json holds a list; it must be a JSON object"),
        (
            '{"fp16": {"a": 1, "a": 2}}',
            r"^DeepSpeed's configuration \S+ds\.json has 'a' twice in one section; remove one\.$",
        ),
    ],
    ids=["not JSON", "not an object", "duplicate key"],
)
def test_an_invalid_file_is_an_error_that_names_it(tmp_path, text, said):
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=said):
        read_config(path)


@pytest.mark.parametrize(
    ("given", "said"), [(3, "is of type int; give a dict"), ("nowhere.json", "nowhere.json cannot be")]
)
def test_a_value_that_is_not_a_configuration_is_refused(given, said):
    with pytest.raises(ArgumentError, match=said):
        read_config(given)


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"hidden_size": 64}, 64),
        ({"hidden_sizes": [16, 32]}, 32),
        ({"text_config": SimpleNamespace(hidden_size=48)}, 48),
        ({"text_config": SimpleNamespace(hidden_sizes=[8, 4])}, 8),
        ({}, None),
    ],
)
def test_hidden_size_comes_from_the_models_config(config, width):
    assert hidden_size_of(SimpleNamespace(config=SimpleNamespace(**config))) == width


def test_a_model_without_a_config_has_no_hidden_size():
    assert hidden_size_of(object()) is None


def test_stage_and_precision_are_read_from_the_configuration():
    assert (stage_of({}), stage_of({"zero_optimization": {"stage": 2}})) == (0, 2)
    assert [precision_of({name: {"enabled": True}}) for name in ("bf16", "fp16")] == ["bf16", "fp16"]
    assert precision_of({"fp16": {"enabled": False}}) == ""
