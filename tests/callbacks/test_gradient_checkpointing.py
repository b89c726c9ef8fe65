"""Recomputing activations: the same gradients, by a model's own means or block by block."""

from __future__ import annotations

import pytest
import torch

from support.models import Block, Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import GradientCheckpointing, MixedPrecision
from trainbus.events import ModelError


class Counting(Block):
    """Counts how often it runs forward."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return super().forward(x)


def counting_net() -> Net:
    model = Net()
    torch.manual_seed(1)
    model.blocks = torch.nn.Sequential(Counting(), Counting())
    return model


def test_blocks_of_a_plain_model_are_run_twice_to_the_same_gradients(tmp_path):
    ends = []
    for callbacks in ([], [GradientCheckpointing(blocks=(Counting,))]):
        model = counting_net()
        net_trainer(tmp_path, *callbacks, model=model).train()
        ends.append((weights(model), model.blocks[0].runs))
        assert not any("forward" in vars(module) for module in model.modules())
    (plain, once), (recomputed, twice) = ends
    assert same_weights(plain, recomputed), "dropout draws the same numbers in the second run of a block"
    assert twice == 2 * once


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        **{"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 8, "max_position_embeddings": 8, "num_labels": 2},
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


TOKENS = [{"input_ids": torch.arange(row, row + 6) % 20, "labels": row % 2} for row in range(16)]


def test_a_model_with_its_own_checkpointing_is_asked_to_enable_it(tmp_path):
    ends, layers = [], []
    for callbacks in ([], [GradientCheckpointing()]):
        model = bert()
        runs = [0]
        model.bert.encoder.layer[0].attention.register_forward_pre_hook(
            lambda *_, runs=runs: runs.__setitem__(0, runs[0] + 1)
        )
        built = net_trainer(tmp_path, *callbacks, model=model, train_dataset=TOKENS, eval_dataset=None)
        built.on("on_step_begin", lambda model: layers.append(model.is_activation_checkpointing), once=1)
        built.train()
        ends.append((weights(model), runs[0]))
        assert not model.is_activation_checkpointing, "what was switched on for the training is switched off again"
    assert layers == [False, True]
    (plain, once), (recomputed, twice) = ends
    assert same_weights(plain, recomputed)
    assert (once, twice) == (6, 12)


def test_settings_of_the_user_stay_enabled(tmp_path):
    model = bert()
    model.activation_checkpointing_enable()
    net_trainer(tmp_path, GradientCheckpointing(), model=model, train_dataset=TOKENS, eval_dataset=None).train()
    assert model.is_activation_checkpointing


class OldStyle(Net):
    """A model with the older name of the method, which it cannot undo."""

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.told = gradient_checkpointing_kwargs


def test_the_older_name_and_the_options(tmp_path):
    model = OldStyle()
    net_trainer(tmp_path, GradientCheckpointing({"use_reentrant": False}), model=model).train()
    assert model.told == {"use_reentrant": False}


def test_a_model_without_checkpointing_gets_an_error_with_its_classes(tmp_path):
    with pytest.raises(ModelError) as caught:
        net_trainer(tmp_path, GradientCheckpointing()).train()
    message = str(caught.value)
    assert "Net has no method gradient_checkpointing_enable" in message
    assert "GradientCheckpointing(blocks=(Block,))" in message
    assert "Its modules are: Block, Dropout, Linear, Sequential." in message


def test_blocks_that_the_model_does_not_have_are_named(tmp_path):
    with pytest.raises(ModelError, match="Net has no module of the class 'Conv1d'"):
        net_trainer(tmp_path, GradientCheckpointing(blocks=(torch.nn.Conv1d, torch.nn.LSTM))).train()


def test_unwinds_with_others_that_replace_the_same_forward(tmp_path):
    model = Net()
    net_trainer(tmp_path, MixedPrecision("bf16"), GradientCheckpointing(blocks=(Net,)), model=model).train()
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, None),
        ({"gradient_checkpointing": True}, GradientCheckpointing()),
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
            GradientCheckpointing({"use_reentrant": False}),
        ),
    ],
)
def test_arguments_build_the_callback(tmp_path, arguments, expected):
    assert net_trainer(tmp_path, **arguments).callbacks.get("GradientCheckpointing") == expected
