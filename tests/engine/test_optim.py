from __future__ import annotations

import copy
import sys
import types
import warnings

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from transformers import trainer_optimizer
from transformers.trainer_pt_utils import get_parameter_names
from transformers.training_args import OptimizerNames

from trainbus.engine.optim.adafactor import Adafactor
from trainbus.engine.optim.build import build_optimizer, decay_parameter_names, parameter_groups, parse_optim_args
from trainbus.engine.optim.registry import OPTIMIZERS
from trainbus.events.errors import ArgumentError, MissingExtra

BUILT_IN = ["adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "adagrad", "rmsprop"]
SPOKEN = [None, *("momentum=0.9,nesterov=true", "lr_decay=0.1, eps=1e-6", "alpha=0.9,centered=True,momentum=0.5")]


class Tagger(nn.Module):
    """An embedding, two kinds of normalization, a convolution, a bare vector and a scalar: every shape that matters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.ln = nn.LayerNorm(8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.post_norm = nn.RMSNorm(8)
        self.shift = nn.Parameter(torch.zeros(8))
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        hidden = self.ln(self.embed(tokens) + self.shift)
        hidden = self.post_norm(self.conv(hidden.mT).mT) * self.gain
        return self.head(torch.tanh(hidden))


def tagger() -> Tagger:
    torch.manual_seed(0)
    return Tagger()


def bert():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=31,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=12,
            max_position_embeddings=16,
        )
    )


def their_optimizer(model, tmp_path, **arguments):
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, **arguments
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.Trainer(model=model, args=args).create_optimizer()


def step(model, optimizer, index: int) -> None:
    draw = torch.Generator().manual_seed(index)
    tokens = torch.randint(11, (4, 6), generator=draw)
    labels = torch.randint(3, (4, 6), generator=draw)
    loss = F.cross_entropy(model(tokens).float().flatten(0, 1), labels.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def assert_same_weights(ours, theirs) -> None:
    for (name, mine), yours in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, yours), name


def names_in_groups(model, groups) -> list[tuple[float, list[str]]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [(group["weight_decay"], [names[parameter] for parameter in group["params"]]) for group in groups]


# -- groups ------------------------------------------------------------------------------------------------------------


def frozen_body():
    model = bert()
    model.bert.requires_grad_(False)
    return model


def tied():
    model = tagger()
    model.twin = nn.Linear(8, 11)
    model.twin.weight = model.embed.weight
    model.again = model.ln
    return model


def frozen_embedding_and_biases_only():
    model = tagger().requires_grad_(False)
    model.head.bias.requires_grad_(True)
    return model


@pytest.mark.parametrize(
    "make", [bert, tagger, frozen_body, tied, frozen_embedding_and_biases_only, lambda: nn.LayerNorm(3)]
)
def test_groups_equal_transformers(make, tmp_path):
    model = make()
    theirs = their_optimizer(model, tmp_path, weight_decay=0.3).param_groups
    ours = parameter_groups(model, 0.3)
    assert names_in_groups(model, ours) == names_in_groups(model, theirs)
    assert len(ours) == 2


PATTERNS = ["bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
module_names = st.sampled_from(["norm", "norm2", "pre_norm", "LayerNorm", "normal", "x_Norm_y", "Bias", "block", "m"])


@st.composite
def models(draw, depth=3):
    kind = draw(st.sampled_from([nn.LayerNorm, nn.Module, nn.Module]))
    module = kind(2) if kind is nn.LayerNorm else kind()
    for name in draw(st.lists(module_names, unique=True, max_size=3)):
        if depth and draw(st.booleans()):
            module.add_module(name, draw(models(depth - 1)))
        else:
            module.register_parameter(name, nn.Parameter(torch.zeros(2)))
    return module


@given(models())
@settings(max_examples=200, deadline=None)
def test_decay_names_equal_transformers_for_any_tree(model):
    assert decay_parameter_names(model) == set(get_parameter_names(model, [nn.LayerNorm], PATTERNS))


def test_parameters_on_several_meshes_get_a_group_each():
    model = tagger()
    model.head.weight.device_mesh = model.head.bias.device_mesh = "experts"
    groups = names_in_groups(model, parameter_groups(model, 0.1))
    assert [decay for decay, _ in groups] == [0.1, 0.1, 0.0, 0.0]
    assert [names for _, names in groups][1::2] == [["head.weight"], ["head.bias"]]


def test_a_frozen_model_is_an_error_that_names_it():
    with pytest.raises(ArgumentError, match="every parameter of Tagger is frozen"):
        parameter_groups(tagger().requires_grad_(False), 0.0)
    with pytest.raises(ArgumentError, match="ReLU has no parameters"):
        parameter_groups(nn.ReLU(), 0.0)
    with pytest.raises(ArgumentError, match="no parameter to update"):
        build_optimizer("sgd", [{"params": []}], lr=0.1)


# -- built-in optimizers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "optim_args"),
    [*((name, None) for name in BUILT_IN), ("sgd", SPOKEN[1]), ("adagrad", SPOKEN[2]), ("rmsprop", SPOKEN[3])],
)
def test_weights_equal_transformers_at_every_step(name, optim_args, weight_decay, tmp_path):
    ours = tagger()
    theirs = copy.deepcopy(ours)
    shared = {"weight_decay": weight_decay, "optim_args": optim_args}
    their = their_optimizer(
        theirs, tmp_path, optim=name, learning_rate=0.01, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-7, **shared
    )
    groups = parameter_groups(ours, weight_decay)
    mine = build_optimizer(name, groups, lr=0.01, betas=(0.8, 0.95), eps=1e-7, optim_args=optim_args)

    assert {**mine.defaults} == {**their.defaults}
    for index in range(20):
        step(ours, mine, index)
        step(theirs, their, index)
        assert_same_weights(ours, theirs)
    assert_same_settings(mine, their)


def assert_same_settings(mine, their) -> None:
    for my_group, their_group in zip(mine.param_groups, their.param_groups, strict=True):
        assert {key: my_group[key] for key in my_group if key != "params"} == {
            key: their_group[key] for key in their_group if key != "params"
        }


def test_adamw_is_short_for_adamw_torch():
    optimizer = build_optimizer(OptimizerNames.ADAMW_TORCH, parameter_groups(tagger(), 0.0), lr=1e-3)
    assert type(optimizer) is torch.optim.AdamW
    assert OPTIMIZERS["adamw"] is OPTIMIZERS["adamw_hf"] is OPTIMIZERS["adamw_torch"]
    assert not optimizer.defaults["fused"]


def test_building_leaves_the_groups_as_they_are():
    groups = parameter_groups(tagger(), 0.1)
    build_optimizer("sgd", groups, lr=0.1)
    assert all(set(group) == {"params", "weight_decay"} for group in groups)


# -- adafactor ---------------------------------------------------------------------------------------------------------

ADAFACTOR = [
    {"lr": 0.01, "relative_step": False, "scale_parameter": False},
    {"lr": 0.01, "relative_step": False, "scale_parameter": False, "beta1": 0.9, "weight_decay": 0.1},
    {"lr": 0.01, "relative_step": False, "scale_parameter": True, "weight_decay": 0.1, "clip_threshold": 0.1},
    {"weight_decay": 0.01, "decay_rate": -0.5, "eps": (1e-20, 0.3)},
    {"warmup_init": True, "beta1": 0.5},
    {"warmup_init": True, "scale_parameter": False},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", ADAFACTOR)
def test_adafactor_equals_transformers_at_every_step(options, dtype):
    ours = tagger().to(dtype)
    theirs = copy.deepcopy(ours)
    mine, their = Adafactor(ours.parameters(), **options), transformers.Adafactor(theirs.parameters(), **options)
    for index in range(20):
        step(ours, mine, index)
        step(theirs, their, index)
        assert_same_weights(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [Adafactor, transformers.Adafactor])
def test_adafactor_resumes_bit_for_bit_also_from_transformers(first, dtype):
    options = ADAFACTOR[1]
    unbroken = tagger().to(dtype)
    optimizer = Adafactor(unbroken.parameters(), **options)
    broken = copy.deepcopy(unbroken)
    before = first(broken.parameters(), **options)
    for index in range(5):
        step(unbroken, optimizer, index)
        step(broken, before, index)
    after = Adafactor(broken.parameters(), **options)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for index in range(5, 10):
        step(unbroken, optimizer, index)
        step(broken, after, index)
    assert_same_weights(unbroken, broken)


def test_adafactor_keeps_rows_and_columns_only():
    weight = nn.Parameter(torch.ones(3, 5, 7))
    weight.grad = torch.ones_like(weight)
    optimizer = Adafactor([weight])
    optimizer.step()
    assert {key: value.shape for key, value in optimizer.state[weight].items() if key != "step"} == {
        "exp_avg_sq_row": (3, 5),
        "exp_avg_sq_col": (3, 7),
    }


def test_adafactor_runs_a_closure_with_gradients():
    weight = nn.Parameter(torch.ones(3))

    def closure():
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert Adafactor([weight]).step(closure) == 3.0
    assert weight.max() < 1


@pytest.mark.parametrize(
    "options", [{"lr": 0.1}, {"relative_step": False}, {"lr": 0.1, "relative_step": False, "warmup_init": True}]
)
def test_adafactor_refuses_settings_that_exclude_each_other(options):
    with pytest.raises(ArgumentError, match="Adafactor: "):
        Adafactor([nn.Parameter(torch.ones(1))], **options)


def test_adafactor_refuses_sparse_gradients():
    embedding = nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        Adafactor(embedding.parameters()).step()


# -- optimizers of other packages --------------------------------------------------------------------------------------


def test_every_name_of_transformers_is_known():
    assert not THEIRS - OPTIMIZERS.keys()


THEIRS = {member.value for member in OptimizerNames}
FOREIGN = [name for name, spec in OPTIMIZERS.items() if spec.package and not spec.unsupported]
NO_DEVICE = [name for name, spec in OPTIMIZERS.items() if spec.package in ("torch_xla", "torch_npu")]
OPTIM_ARGS = {
    "ademamix": "beta1=0.7,beta3=0.99,alpha=2,t_alpha=10,t_beta3=20,eps=1e-3",
    "schedule_free_sgd": "r=1.5,weight_lr_power=0",
    "grokadamw": "lamb=3,gamma=0.5",
    "adamw_anyprecision": "use_kahan_summation=True,momentum_dtype=bfloat16",
    "stable_adamw": "max_lr=0.5,kahan_sum=True",
    "adamw_torch_4bit": "bf16_stochastic_round=true",
    "galore_adamw": "rank=4,update_proj_gap=3,scale=0.5,proj_type=reverse_std",
    "galore_adafactor": "rank=2",
    "apollo_adamw": "rank=1,proj=svd,scale_type=tensor,scale=128,update_proj_gap=7,proj_type=left",
}


@pytest.fixture
def stand_ins(monkeypatch):
    """Every foreign package as a module whose optimizers only record what they were given."""
    pinned = []

    class Manager:
        get_instance = classmethod(lambda cls: cls())

        def register_module_override(self, *call):
            pinned.append(call)

    for spec in OPTIMIZERS.values():
        if not spec.package or spec.unsupported:
            continue
        path, _, class_name = spec.target.partition(":")
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in sys.modules or not hasattr(sys.modules[name], "stand_in"):
                monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
                sys.modules[name].stand_in = True
                if end > 1:
                    setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], sys.modules[name])

        class Recorder(torch.optim.SGD):
            def __init__(self, groups, **kwargs):
                self.given, self.kwargs = [dict(group) for group in groups], kwargs
                super().__init__(groups, kwargs["lr"])

        setattr(sys.modules[path], class_name, Recorder)
    sys.modules["bitsandbytes"].optim.GlobalOptimManager = Manager
    for attribute in dir(trainer_optimizer):
        if attribute.startswith("is_") and attribute.endswith("_available"):
            monkeypatch.setattr(trainer_optimizer, attribute, lambda *_: True)
    monkeypatch.setattr(trainer_optimizer.importlib.metadata, "version", lambda _: "99.0")
    return pinned


@pytest.mark.parametrize("name", [name for name in FOREIGN if name in THEIRS])
@pytest.mark.parametrize("spoken", [False, True])
def test_foreign_optimizers_get_the_options_of_transformers(name, spoken, stand_ins, tmp_path):
    optim_args = OPTIM_ARGS.get(name) if spoken else None
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        report_to="none",
        optim=name,
        weight_decay=0.2,
        learning_rate=0.03,
        adam_beta1=0.8,
        adam_beta2=0.9,
        adam_epsilon=1e-5,
        warmup_steps=13,
        optim_args=optim_args,
        optim_target_modules="all-linear",
    )
    model = tagger()
    their_class, their_kwargs = transformers.Trainer.get_optimizer_cls_and_kwargs(args, model)
    their_groups = their_kwargs.pop("params", None)
    optimizer = build_optimizer(
        name,
        parameter_groups(model, 0.2),
        lr=0.03,
        betas=(0.8, 0.9),
        eps=1e-5,
        weight_decay=0.2,
        warmup_steps=13,
        optim_args=optim_args,
        model=model,
        target_modules="all-linear",
    )
    quietly = {"no_deprecation_warning": True} if name == "galore_adamw" else {}
    assert type(optimizer) is their_class
    assert optimizer.kwargs == {**their_kwargs, **quietly}
    if their_groups is not None:
        assert_same_groups(optimizer.given, their_groups)
    eight_bit = "8bit" in name and OPTIMIZERS[name].package == "bitsandbytes"
    assert stand_ins == ([(model.embed, "weight", {"optim_bits": 32})] if eight_bit else [])


def assert_same_groups(ours, theirs) -> None:
    for mine, yours in zip(ours, theirs, strict=True):
        assert [id(parameter) for parameter in mine.pop("params")] == [id(tensor) for tensor in yours.pop("params")]
        assert mine == yours


def test_galore_and_apollo_need_the_model(stand_ins):
    with pytest.raises(ArgumentError, match="'apollo_adamw' needs model="):
        build_optimizer("apollo_adamw", parameter_groups(tagger(), 0.0), lr=0.1, target_modules="all-linear")


def test_8bit_optimizers_need_the_model(stand_ins):
    with pytest.raises(ArgumentError, match="'lion_8bit' needs model="):
        build_optimizer("lion_8bit", parameter_groups(tagger(), 0.0), lr=0.1)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_missing_package_is_named_with_its_remedy(name, monkeypatch):
    spec = OPTIMIZERS[name]
    module = spec.target.partition(":")[0]
    for missing in (module, module.partition(".")[0]):  # a module that was imported before hides its package
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=f"optim={name!r} needs ") as caught:
        build_optimizer(name, parameter_groups(tagger(), 0.0), lr=0.1)
    assert "pip install" in str(caught.value)
    assert spec.package in str(caught.value)


def test_a_missing_bitsandbytes_is_named_with_its_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra) as caught:
        build_optimizer("adamw_bnb_8bit", parameter_groups(tagger(), 0.0), lr=0.1)
    assert str(caught.value) == "optim='adamw_bnb_8bit' needs bitsandbytes: pip install bitsandbytes"


def test_a_package_that_is_too_old_is_named(stand_ins):
    del sys.modules["schedulefree"].RAdamScheduleFree
    with pytest.raises(MissingExtra, match=r"pip install 'schedulefree>=1\.4'"):
        build_optimizer("schedule_free_radam", parameter_groups(tagger(), 0.0), lr=0.1)


def test_missing_dependency_of_a_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "grokadamw.py").write_text("import no_such_module_at_all.inside\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "grokadamw", raising=False)
    with pytest.raises(MissingExtra) as caught:
        build_optimizer("grokadamw", parameter_groups(tagger(), 0.0), lr=0.1)
    said = "needs no_such_module_at_all, which grokadamw imports: pip install no_such_module_at_all"
    assert said in str(caught.value)


def test_a_package_that_breaks_on_import_keeps_its_own_error(monkeypatch, tmp_path):
    (tmp_path / "grokadamw.py").write_text("from sys import no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "grokadamw", raising=False)
    with pytest.raises(ImportError, match="no_such_name") as caught:
        build_optimizer("grokadamw", parameter_groups(tagger(), 0.0), lr=0.1)
    assert not isinstance(caught.value, MissingExtra)


@pytest.mark.parametrize(
    "name", [name for name, spec in OPTIMIZERS.items() if spec.unsupported and name not in NO_DEVICE]
)
def test_layerwise_optimizers_are_refused_with_a_remedy(name):
    remedy = r"callback OptimizerInBackward\(\) does the same with other optimizers, such as optim='adamw_torch'"
    with pytest.raises(ArgumentError, match=rf"\(package .*cannot be built by name.*{remedy}"):
        build_optimizer(name, parameter_groups(tagger(), 0.0), lr=0.1)


@pytest.mark.parametrize("name", NO_DEVICE)
def test_optimizers_of_other_devices_are_refused_with_a_remedy(name):
    with pytest.raises(
        ArgumentError, match=r"\(package torch_.*This optimizer needs an .*Use optim='adamw_torch_fused'"
    ):
        build_optimizer(name, parameter_groups(tagger(), 0.0), lr=0.1)


# -- names and settings ------------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(ArgumentError, match=r"'adamw_troch' is unknown; did you mean 'adamw_torch'\?") as caught:
        build_optimizer("adamw_troch", parameter_groups(tagger(), 0.0), lr=0.1)
    for name in OPTIMIZERS:
        assert name in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "a=1", "a=1,b=2", " a = 1 , b=true", "a=1,a=2", "a=-1e-3"])
def test_optim_args_are_read_as_transformers_reads_them(text):
    assert parse_optim_args(text) == trainer_optimizer._parse_optim_args(text)


@pytest.mark.parametrize("text", ["a", "a=1,", "=1", "a=1=2", ","])
def test_optim_args_without_name_and_value_raise(text):
    with pytest.raises(ArgumentError, match="is not name=value"):
        parse_optim_args(text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "sgd",
            "momentom=0.9",
            r"'sgd' has no option 'momentom'; did you mean 'momentum'\? Its options: momentum, dampening",
        ),
        ("adamw_torch", "amsgrad=true", r"has no option 'amsgrad'\. Its options: none"),
        ("sgd", "momentum=fast", r"cannot read momentum='fast' \(could not convert"),
        ("sgd", "nesterov=perhaps", r"cannot read nesterov='perhaps' \(write true or false\)"),
        ("adamw_anyprecision", "momentum_dtype=Tensor", r"cannot read momentum_dtype='Tensor' \(write a torch dtype"),
        ("galore_adamw", "proj_type=standard", r"cannot read proj_type='standard' \(write one of std, reverse_std"),
    ],
)
def test_invalid_options_raise(name, text, message):
    with pytest.raises(ArgumentError, match=message):
        build_optimizer(name, parameter_groups(tagger(), 0.0), lr=0.1, optim_args=text)
