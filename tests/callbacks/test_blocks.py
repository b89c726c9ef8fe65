"""Blocks of a model that are gathered or recomputed together."""

import pytest
from torch import nn

from trainbus.callbacks.model.blocks import blocks_of, own_modules
from trainbus.events.errors import ModelError


class Part(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 1)
        self.inner = nn.ModuleList([nn.Linear(width, width)])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Embedding(10, 4)
        self.stack = nn.ModuleDict({"parts": nn.ModuleList([Part(), Part()])})
        self.end = nn.Linear(4, 10)


def names_of(model, blocks):
    known = {module: name for name, module in model.named_modules()}
    return [known[block] for block in blocks]


def test_default_blocks_are_the_elements_of_the_outermost_lists():
    model = Model()
    assert names_of(model, blocks_of(model)) == ["stack.parts.0", "stack.parts.1"]


def test_a_model_may_name_their_classes():
    model = Model()
    model._no_split_modules = ["MultiheadAttention", "Absent"]
    assert names_of(model, blocks_of(model)) == ["stack.parts.1.attention", "stack.parts.0.attention"]
    model._no_split_modules = ["Absent"]
    assert names_of(model, blocks_of(model)) == ["stack.parts.0", "stack.parts.1"]


def test_inner_ones_come_before_those_around_them():
    model = Model()
    found = names_of(model, blocks_of(model, ("Part", "Linear")))
    for number in (0, 1):
        assert found.index(f"stack.parts.{number}.inner.0") < found.index(f"stack.parts.{number}")
    assert "end" in found


def test_classes_are_as_good_as_their_names():
    model = Model()
    assert blocks_of(model, (Part,)) == blocks_of(model, ("Part",)) == [*model.stack["parts"]][::-1]


def test_blocks_by_size_count_each_module_once():
    model = Model()
    # 80 weights in an attention, 20 in the linear layer beside it, 40 in the embedding, 50 at the end.
    assert names_of(model, blocks_of(model, 45)) == ["stack.parts.0.attention", "stack.parts.1.attention", "end"]
    assert names_of(model, blocks_of(model, 90)) == ["stack.parts.0", "stack.parts.1"]


def test_the_parts_of_an_attention_are_used_without_being_called():
    model = Model()
    assert not any("out_proj" in name for name in names_of(model, blocks_of(model, 1)))


def test_no_checkpoint_may_be_requested():
    assert blocks_of(Model(), ()) == []
    assert blocks_of(nn.Linear(2, 2)) == []


def test_a_module_that_shares_a_weight_is_no_block():
    model = Model()
    model.stack["parts"][0].inner[0].weight = model.stack["parts"][1].inner[0].weight
    assert blocks_of(model) == []
    model = Model()
    model.stack["parts"][0].extra = model.start
    assert names_of(model, blocks_of(model)) == ["stack.parts.1"]


def test_a_block_used_twice_counts_once():
    model = Model()
    model.stack["parts"][1] = model.stack["parts"][0]
    assert blocks_of(model) == [model.stack["parts"][0]]


def test_a_missing_class_is_an_error():
    with pytest.raises(ModelError, match="no module of the class 'Prat'; did you mean 'Part'"):
        blocks_of(Model(), ("Prat",))
    with pytest.raises(ModelError, match="no module of the class 'GRU'"):
        blocks_of(Model(), (nn.GRU,))


def test_a_module_belongs_to_the_block_around_it():
    model = Model()
    blocks = {*blocks_of(model)}
    assert [*own_modules(model, blocks)] == [model, model.start, model.stack, model.stack["parts"], model.end]
