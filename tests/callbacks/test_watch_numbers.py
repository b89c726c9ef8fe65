"""The search for the layer where numbers stop being finite."""

from __future__ import annotations

import math

import pytest
import torch

from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Evaluate, WatchNumbers, every
from trainbus.events import ArgumentError, NonFiniteError


def test_watching_does_not_change_a_finite_run(tmp_path):
    plain = net_trainer(tmp_path, Evaluate(every(3)))
    plain.train()
    watched = net_trainer(tmp_path, WatchNumbers(), Evaluate(every(3)))
    watched.train()
    assert same_weights(weights(plain.model), weights(watched.model))
    assert not any(module._forward_hooks for module in watched.model.modules())


def test_names_the_layer_whose_output_breaks(tmp_path):
    model = Net()
    model.blocks[1].dropout.register_forward_hook(lambda module, inputs, output: output * math.inf)
    built = net_trainer(tmp_path, WatchNumbers(), model=model)
    with pytest.raises(NonFiniteError, match=r"^blocks\.1\.dropout output is not finite after step 0\.") as caught:
        built.train()
    lines = str(caught.value).splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines[1:] if "Watch" not in line][:3] == [
        "blocks.0.linear input", "blocks.0.linear.weight", "blocks.0.linear.bias",
    ]  # fmt: skip
    assert any(line.endswith("nan  blocks.1.dropout output") for line in lines)
    assert len([hook for module in model.modules() for hook in module._forward_hooks.values()]) == 1


def test_names_the_weight_that_is_broken(tmp_path):
    built = net_trainer(tmp_path, WatchNumbers())

    @torch.no_grad()
    def spoil(model):
        model.head.bias.fill_(math.nan)

    built.on("on_step_end", spoil, once=2)
    with pytest.raises(NonFiniteError, match=r"^head\.bias is not finite after step 2\."):
        built.train()


class Between(Net):
    """Divides by zero outside of its layers."""

    def forward(self, x, labels=None):
        return super().forward(x / 0 * 0, labels)


def test_shows_that_it_broke_before_the_layer(tmp_path):
    built = net_trainer(tmp_path, WatchNumbers(), model=Between())
    with pytest.raises(NonFiniteError, match=r"^blocks\.0\.linear output is not finite") as caught:
        built.train()
    assert "nan       nan  blocks.0.linear input" in str(caught.value)


class Sum(Net):
    """Has a loss that is computed in no layer."""

    def forward(self, x, labels=None):
        return {**super().forward(x, labels), "loss": super().forward(x, labels)["loss"] * math.inf}


def test_the_loss_is_an_output_of_the_model(tmp_path):
    with pytest.raises(NonFiniteError, match=r"^Sum output is not finite"):
        net_trainer(tmp_path, WatchNumbers(), model=Sum()).train()


class Masked(Net):
    def __init__(self):
        super().__init__()
        self.passing = torch.nn.Identity()

    def forward(self, x, labels=None):
        mask = torch.full_like(x, -math.inf)
        self.blocks[0](x)
        return super().forward(x + self.passing(x) * 0 + torch.exp(mask), labels)


def test_a_finite_output_may_follow_a_nonfinite_one(tmp_path):
    """Masks are infinite, and are given to layers."""
    built = net_trainer(tmp_path, WatchNumbers(), model=Masked())
    built.model.passing.forward = lambda x, mask=None: x
    assert built.train().global_step == 6


def test_shows_only_the_requested_number(tmp_path):
    model = Net()
    model.head.register_forward_hook(lambda module, inputs, output: output * math.nan)
    with pytest.raises(NonFiniteError) as caught:
        net_trainer(tmp_path, WatchNumbers(shown=2), model=model).train()
    listed = [line for line in str(caught.value).splitlines()[1:] if line.endswith((" output", ".bias", ".weight"))]
    assert [line.split(maxsplit=2)[2] for line in listed] == ["head.bias", "head output"]


def test_evaluations_are_watched_too(tmp_path):
    built = net_trainer(tmp_path, WatchNumbers())
    with torch.no_grad():
        built.model.head.bias.fill_(math.inf)
    with pytest.raises(NonFiniteError, match=r"head\.bias"):
        built.evaluate()


def test_wrong_values_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"WatchNumbers\(shown=0\)"):
        WatchNumbers(0)
    with pytest.raises(ArgumentError, match=r"`debug` is 'underflow_overflo'; did you mean 'underflow_overflow'\?"):
        net_trainer(tmp_path, debug="underflow_overflo")


@pytest.mark.parametrize("given", ["underflow_overflow", ["underflow_overflow"]])
def test_arguments_build_the_callback(tmp_path, given):
    assert net_trainer(tmp_path, debug=given).callbacks["WatchNumbers"] == WatchNumbers()
    assert "WatchNumbers" not in net_trainer(tmp_path, debug="").callbacks
