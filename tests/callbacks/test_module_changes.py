"""Callbacks that change modules: copies and pickles of the model lack the change, and the session leaves none."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.callbacks import Boom
from support.data import text_samples
from support.models import llama
from support.trainers import net_trainer
from trainbus import (
    ChunkedCrossEntropy,
    Compile,
    GradientCheckpointing,
    NEFTune,
    OffloadActivations,
    OptimizerInBackward,
    WatchModules,
    WatchNumbers,
    every,
)
from trainbus.callbacks.base.module_changes import hook_forward, replace_attribute

needs_chunks = pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyOptions"), reason="needs torch 2.13")
DATA: dict[str, Any] = {"train_dataset": text_samples(), "eval_dataset": text_samples(8), "max_grad_norm": 0}

CHANGES: dict[str, Any] = {
    "blocks recomputed": lambda: [GradientCheckpointing(blocks=("LlamaDecoderLayer",))],
    "recomputed by the model": lambda: [GradientCheckpointing()],
    "recomputed with nested backwards": lambda: [GradientCheckpointing({"use_reentrant": True})],
    "model offloaded": lambda: [OffloadActivations(min_bytes=0)],
    "blocks offloaded": lambda: [OffloadActivations(blocks=("LlamaDecoderLayer",), min_bytes=0)],
    "loss in chunks": lambda: [ChunkedCrossEntropy()],
    "model compiled": lambda: [Compile("eager")],
    "blocks compiled": lambda: [Compile("eager", regions="blocks")],
    "noise": lambda: [NEFTune()],
    "modules watched": lambda: [WatchModules(every(1))],
    "numbers watched": lambda: [WatchNumbers()],
    "updated in backward": lambda: [OptimizerInBackward()],
    "several": lambda: [
        *(OffloadActivations(min_bytes=0), ChunkedCrossEntropy(), NEFTune(), WatchNumbers(), OptimizerInBackward())
    ],
}
CASES = [
    pytest.param(make, id=name, marks=needs_chunks if name in ("loss in chunks", "several") else ())
    for name, make in CHANGES.items()
]


def through_torch(model: nn.Module) -> Any:
    """Save a model with `torch.save`, and load it."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": through_torch,
}


def own_names(model: nn.Module) -> dict[str, Any]:
    """Return the attributes and the number of forward hooks of each module, without the weights."""
    return {
        name: ({*vars(module)} - {"_compiled_call_impl"}, len(module._forward_hooks))
        for name, module in model.named_modules()
    }


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", CASES)
def test_copies_compute_with_their_own_weights(tmp_path: Path, make: Callable[[], Any], way: Any) -> None:
    model, reference, copies = llama(), llama(), []
    names, batch = own_names(reference), text_samples(2)[1]
    batch = {name: value[None] for name, value in batch.items()}
    built = net_trainer(tmp_path, *make(), model=model, **{**DATA, "max_steps": 2})

    def take(model: Any) -> None:
        copies.append((way(model), {name: weight.clone() for name, weight in model.state_dict().items()}))

    for event in ("on_step_begin", "on_loss", "on_step_end"):
        built.on(event, take)
    built.train()
    assert own_names(model) == names, "the session leaves nothing on the model"
    take(model)
    assert len(copies) == 7
    for copied, then in copies:
        assert own_names(copied) == names
        reference.load_state_dict(then)
        outputs, expected = (each.train()(**batch) for each in (copied, reference))
        assert torch.equal(outputs.logits, expected.logits)
        assert torch.equal(outputs.loss, expected.loss)


@pytest.mark.parametrize("make", CASES)
def test_an_error_leaves_nothing_on_the_model(tmp_path: Path, make: Callable[[], Any]) -> None:
    model = llama()
    names = own_names(model)
    built = net_trainer(tmp_path, *make(), model=model, **DATA)

    def fail() -> None:
        raise Boom

    built.on("on_loss", fail)
    with pytest.raises(Boom):
        built.train()
    assert own_names(model) == names


def test_a_copy_keeps_the_forward_of_the_user() -> None:
    model = nn.Linear(2, 2)
    own = model.forward = lambda x: x + 1
    undo = replace_attribute(model, "forward", lambda x: x + 2)
    assert model(torch.zeros(1)) == 2
    assert vars(copy.deepcopy(model))["forward"] is own
    undo()
    assert vars(model)["forward"] is own
    assert "__getstate__" not in vars(model)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_changes_are_undone_in_any_order(order: tuple[int, ...]) -> None:
    model = nn.Linear(1, 1)
    before = {*vars(model)}
    undo = [
        replace_attribute(model, "forward", lambda x: x + 1),
        hook_forward(model, lambda module, args, output: output * 10),
        replace_attribute(model, "forward", lambda x: x + 2),
    ]
    assert model(torch.zeros(1)) == 20
    for number in order:
        undo[number]()
        undo[number]()
    assert {*vars(model)} == before
    assert not model._forward_hooks


@pytest.mark.parametrize("first", [0, 1])
def test_two_changes_to_one_value_are_undone_one_by_one(first: int) -> None:
    model = nn.Linear(1, 1)
    undo = [replace_attribute(model, "mark", 7), replace_attribute(model, "mark", 7)]
    undo[first]()
    undo[first]()
    assert model.mark == 7
    undo[1 - first]()
    assert "mark" not in vars(model)


def test_a_shallow_copy_has_the_forward_of_its_class() -> None:
    model = nn.Linear(2, 2)
    undo = replace_attribute(model, "forward", lambda x: x)
    kept = model.register_forward_hook(lambda module, args, output: output)
    unhook = hook_forward(model, lambda module, args, output: output + 1)
    shallow = copy.copy(model)
    assert "forward" not in vars(shallow)
    assert [*shallow._forward_hooks] == [kept.id]
    unhook()
    undo()
