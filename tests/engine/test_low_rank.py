"""GaLore and APOLLO: their target layers, and comparisons with transformers and the real packages."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.trainer_utils import check_target_module_exists

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import history, same_weights, weights
from support.trainers import both, hushed
from trainbus.engine.optim.build import build_optimizer, parameter_groups
from trainbus.engine.optim.galore_apollo import is_target, projected_groups
from trainbus.events import ArgumentError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.attn = nn.ModuleDict({"query": nn.Linear(4, 4), "value": nn.Linear(4, 4, bias=False)})
        self.attn_norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)


def split(targets, model=None):
    """Return the names in the two groups."""
    model = Net() if model is None else model
    names = {parameter: name for name, parameter in model.named_parameters()}
    plain, projected = projected_groups(model, targets, {"rank": 2})
    assert set(plain) == {"params"}
    assert projected.pop("rank") == 2
    return [[names[parameter] for parameter in group["params"]] for group in (plain, projected)]


# -- targets -----------------------------------------------------------------------------------------------------------

patterns = st.sampled_from(["attn", "q", ".*", "attn.query", r".*\.query", "mlp|attn.*", "", "layer.0", r"layer\.\d+"])
names = st.sampled_from(["", "attn", "attn.query", "layer.0", "layer.10.attn.query", "mlp", "layer.0.mlp.q"])


@given(st.one_of(patterns, st.lists(patterns, max_size=3)), names)
def test_targets_are_those_of_transformers(targets, name):
    assert is_target(name, targets) == check_target_module_exists(targets, name)


@pytest.mark.parametrize("targets", ["all-linear", "all_linear", [".*"], ["attn", "head"]])
def test_only_linear_weights_are_chosen(targets):
    plain, projected = split(targets)
    assert projected == ["attn.query.weight", "attn.value.weight", "head.weight"]
    assert plain == ["embed.weight", "attn.query.bias", "attn_norm.weight", "attn_norm.bias", "head.bias"]


@pytest.mark.parametrize("targets", [["query"], "attn.query", r".*\.qu\w+"])
def test_one_layer_is_chosen(targets):
    assert split(targets)[1] == ["attn.query.weight"]


def test_frozen_weights_are_counted_too():
    model = Net()
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    assert split("all-linear", model) == split("all-linear")


@pytest.mark.parametrize("targets", [None, "", []])
def test_missing_targets_raise_with_a_remedy(targets):
    with pytest.raises(ArgumentError, match=r"need optim_target_modules, .* Give 'all-linear', parts of layer names"):
        projected_groups(Net(), targets, {})


def test_unmatched_targets_raise_with_the_nearest_name():
    with pytest.raises(ArgumentError, match=r"no linear layer of Net; did you mean 'query'\? Its linear.*attn\.query,"):
        projected_groups(Net(), ["querry"], {})
    with pytest.raises(ArgumentError, match="of Embedding, which has none"):
        projected_groups(nn.Embedding(2, 2), "all-linear", {})
    with pytest.raises(ArgumentError, match=r"'\(attn' is neither a part of a layer name nor a regular expression"):
        projected_groups(Net(), "(attn", {})


def test_named_layers_that_are_not_linear_warn(caplog):
    assert split(["attn", "embed"])[1] == ["attn.query.weight", "attn.value.weight"]
    assert "names layers that are not nn.Linear and are not projected: embed, attn_norm." in caplog.text
    caplog.clear()
    split(".*")
    assert not caplog.records, "an expression matches more than it means"


# -- trainings ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packages():
    """The real packages; of bitsandbytes, which they import for their 8-bit optimizers, stand-ins if need be."""
    with pytest.MonkeyPatch.context() as only_here:
        if importlib.util.find_spec("bitsandbytes") is None:
            whole, *parts = (types.ModuleType(f"bitsandbytes{part}") for part in ("", ".optim", ".functional"))
            for module in (whole, *parts, inner := types.ModuleType("bitsandbytes.optim.optimizer")):
                only_here.setitem(sys.modules, module.__name__, module)
            whole.functional = parts[1]
            inner.Optimizer2State = torch.optim.Optimizer
        pytest.importorskip("galore_torch", exc_type=ModuleNotFoundError)
        pytest.importorskip("apollo_torch", exc_type=ModuleNotFoundError)


CASES = {
    "galore": ("galore_adamw", "rank=4,update_proj_gap=2,scale=0.5", "all-linear"),
    "galore, some layers": ("galore_adamw", "rank=2,proj_type=left", ["attention.self"]),
    "galore, both sides": ("galore_adamw", "rank=2,proj_type=full,update_proj_gap=3", r".*\.(query|value)"),
    "galore, adafactor": ("galore_adafactor", "rank=4,update_proj_gap=2", "all-linear"),
    "apollo": ("apollo_adamw", "rank=4,update_proj_gap=2", "all-linear"),
    "apollo, mini": ("apollo_adamw", "rank=1,scale=128,scale_type=tensor,proj=svd", ["mlp", "query", "dense"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_equal_those_of_transformers(case, packages, tmp_path):
    name, options, targets = case
    args = {"optim": name, "optim_args": options, "optim_target_modules": targets, "learning_rate": 0.01}
    args |= {"max_steps": 6, "logging_steps": 1, "save_strategy": "no", "per_device_train_batch_size": 4}
    (theirs, _), (ours, _) = both(tmp_path, args, train_dataset=sentences(16))
    assert same_weights(weights(ours.model), weights(theirs.model))
    assert [entry["loss"] for entry in history(ours) if "loss" in entry] == [
        entry["loss"] for entry in history(theirs) if "loss" in entry
    ]
    before = weights(bert())
    assert not same_weights(weights(ours.model), before)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_resumes_to_the_weights_of_an_unbroken_run(case, packages, tmp_path):
    name, options, targets = case

    def build(folder):
        args = trainbus.TrainingArguments(
            str(tmp_path / folder),
            **{"optim": name, "optim_args": options, "optim_target_modules": targets, "learning_rate": 0.01},
            **{"max_steps": 6, "save_steps": 3, "per_device_train_batch_size": 4, "use_cpu": True},
            disable_tqdm=True,
        )
        return trainbus.Trainer(bert(), args, train_dataset=sentences(16))

    unbroken = build("run")
    unbroken.train()
    resumed = build("run")
    with hushed():
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_ignored_weight_decay_warns(packages, caplog):
    model = Net()
    with caplog.at_level(logging.WARNING):
        build_optimizer("galore_adamw", parameter_groups(model, 0.1), lr=0.1, model=model, target_modules="all-linear")
        assert not caplog.records
        build_optimizer(
            "galore_adamw",
            parameter_groups(model, 0.1),
            lr=0.1,
            weight_decay=0.1,
            model=model,
            target_modules="all-linear",
        )
    assert "ignores weight_decay=0.1" in caplog.text
