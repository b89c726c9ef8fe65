"""Liger kernels, with a fake of the package, which needs a GPU: when they apply, and refusals."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from support.data import points, sentences
from support.models import Regression, bert
from support.outcomes import same_weights, weights
from support.trainers import both
from trainbus import Trainer, TrainingArguments
from trainbus.events import ArgumentError, MissingExtra, ModelError


@pytest.fixture
def applied(monkeypatch):
    """A package whose kernels double the weights of the classifier; gives what it was called with."""
    calls = []

    def apply(model, **kernels):
        calls.append((model, kernels))
        with torch.no_grad():
            model.classifier.weight.mul_(2)

    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    module = types.ModuleType("liger_kernel.transformers")
    module._apply_liger_kernel_to_instance = apply
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
    sys.modules.pop("trainbus.integrations.liger", None)
    yield calls
    sys.modules.pop("trainbus.integrations.liger", None)


def test_kernels_are_put_in_when_transformers_does(applied, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.integrations.liger.is_liger_kernel_available", lambda: True)
    args = {"use_liger_kernel": True, "liger_kernel_config": {"rope": False, "rms_norm": True}}
    args |= {"max_steps": 3, "learning_rate": 0.01, "save_strategy": "no", "per_device_train_batch_size": 4}
    (theirs, _), (ours, _) = both(tmp_path, args, train_dataset=sentences(12))
    assert [kernels for _, kernels in applied] == [args["liger_kernel_config"]] * 2
    assert applied[1][0] is ours.model
    assert same_weights(weights(ours.model), weights(theirs.model))


def build(folder, model, **options):
    args = TrainingArguments(str(folder), max_steps=1, use_liger_kernel=True, save_strategy="no", disable_tqdm=True)
    return Trainer(model, args, eval_dataset=sentences(4), **{"train_dataset": sentences(8), **options})


def test_a_standalone_evaluation_leaves_the_model_unchanged(applied, tmp_path):
    built = build(tmp_path, bert())
    built.evaluate()
    assert applied == []
    built.train()
    assert [kernels for _, kernels in applied] == [{}]


def test_the_model_inside_an_adapter_is_meant(applied, tmp_path):
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = bert()

        def get_base_model(self):
            return self.inner

        def forward(self, input_ids, attention_mask, labels=None):
            return self.inner(input_ids, attention_mask, labels=labels)

    built = build(tmp_path, Adapter())
    built.train()
    assert applied[0][0] is built.model.inner


def test_a_model_that_names_no_architecture_is_refused(applied, tmp_path):
    with pytest.raises(ModelError, match=r"`config\.model_type` of a model of transformers, and Regression has none"):
        build(tmp_path, Regression(), train_dataset=points(8)).train()
    assert applied == []


def test_it_exists_only_if_requested(applied, tmp_path):
    args = TrainingArguments(str(tmp_path), report_to="none")
    assert "Liger" not in Trainer(bert(), args).callbacks
    with pytest.raises(ArgumentError, match="use_liger_kernel=True"):
        TrainingArguments(str(tmp_path), liger_kernel_config={"rope": True})


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.delitem(sys.modules, "trainbus.integrations.liger", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbus\[liger\]'"):
        build(tmp_path, bert())
