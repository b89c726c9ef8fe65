"""Evaluating in half precision: transformers' numbers, and the weights back to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from support.callbacks import Boom
from support.data import net_samples, sentences
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import both, net_trainer
from trainbus import Evaluate, HalfEvaluation, every
from trainbus.events import ArgumentError


def mean_of_logits(prediction):
    return {"mean": float(np.mean(prediction.predictions)), "rows": len(prediction.label_ids)}


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_evaluates_to_the_numbers_of_transformers(tmp_path, kind):
    args = {"per_device_eval_batch_size": 4, f"{kind}_full_eval": True}
    options = {"eval_dataset": sentences(8), "compute_metrics": mean_of_logits}
    (_, theirs), (run, ours) = both(tmp_path, args, lambda run: run.evaluate(), **options)
    for name in ("eval_loss", "eval_mean", "eval_rows"):
        assert ours[name] == theirs[name]
    plain = run.__class__(run.model, run.args.__class__(str(tmp_path), use_cpu=True), eval_dataset=sentences(8))
    assert plain.evaluate()["eval_loss"] != ours["eval_loss"]


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("do", ["evaluate", "predict"])
def test_the_weights_come_back_to_the_bit(tmp_path, kind, do):
    model = Net()
    model.register_buffer("scale", torch.tensor([1.1]))
    model.register_buffer("count", torch.tensor([3]))
    before, identity = weights(model), [id(weight) for weight in model.parameters()]
    built = net_trainer(tmp_path, HalfEvaluation(kind), model=model)
    seen = set()
    built.on("on_prediction_step", lambda model: seen.update(tensor.dtype for tensor in model.state_dict().values()))
    built.evaluate() if do == "evaluate" else built.predict(net_samples(4))
    assert seen == {torch.bfloat16 if kind == "bf16" else torch.float16, torch.int64}
    assert same_weights(weights(model), before)
    assert [id(weight) for weight in model.parameters()] == identity
    assert "forward" not in vars(model)


def test_the_weights_come_back_after_an_error(tmp_path):
    built = net_trainer(tmp_path, HalfEvaluation())
    before = weights(built.model)

    def fail():
        raise Boom

    built.on("on_prediction_step", fail)
    with pytest.raises(Boom):
        built.evaluate()
    assert same_weights(weights(built.model), before)


def test_evaluations_of_a_training_keep_the_weights(tmp_path):
    built = net_trainer(tmp_path, HalfEvaluation(), Evaluate(every(2)))
    seen = set()
    built.on("on_prediction_step", lambda model: seen.update(tensor.dtype for tensor in model.parameters()))
    built.train()
    plain = net_trainer(tmp_path, Evaluate(every(2)))
    plain.train()
    assert seen == {torch.float32}
    assert same_weights(weights(built.model), weights(plain.model))


def test_training_continues_after_it(tmp_path):
    """The optimizer holds the same parameters before and after."""
    built, plain = net_trainer(tmp_path, HalfEvaluation()), net_trainer(tmp_path)
    for run in (built, plain):
        torch.manual_seed(0)
        run.train()
        run.evaluate()
        torch.manual_seed(0)
        run.train()
    assert same_weights(weights(built.model), weights(plain.model))


class Shared(Net):
    """Two names for one weight, and labels that stay as they are."""

    def __init__(self):
        super().__init__()
        self.again = self.head
        self.seen = []

    def forward(self, x, labels=None):
        self.seen.append((x.dtype, labels.dtype))
        return super().forward(x, labels)


def test_inputs_are_converted_and_labels_are_not(tmp_path):
    model = Shared()
    net_trainer(tmp_path, HalfEvaluation(), model=model).evaluate()
    assert set(model.seen) == {(torch.bfloat16, torch.float32)}
    assert model.again.weight is model.head.weight
    assert isinstance(model.head, nn.Linear)


def test_wrong_values_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"HalfEvaluation\('int8'\)"):
        HalfEvaluation("int8")
    with pytest.raises(ArgumentError, match="`bf16_full_eval` and `fp16_full_eval` are both True"):
        net_trainer(tmp_path, bf16_full_eval=True, fp16_full_eval=True)


@pytest.mark.parametrize(("name", "kind"), [("bf16_full_eval", "bf16"), ("fp16_full_eval", "fp16")])
def test_arguments_build_the_callback(tmp_path, name, kind):
    assert net_trainer(tmp_path, **{name: True}).callbacks["HalfEvaluation"] == HalfEvaluation(kind)
    assert "HalfEvaluation" not in net_trainer(tmp_path).callbacks
