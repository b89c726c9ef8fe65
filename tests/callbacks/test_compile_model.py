"""torch.compile: the same weights as without it, and the original model after the run."""

from __future__ import annotations

import pytest
import torch

from support.callbacks import Boom
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Compile, Evaluate, MixedPrecision, every
from trainbus.events import ArgumentError


@pytest.fixture(autouse=True)
def forgotten():
    """Have the compiler forget what it compiled, before and after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_trains_to_the_weights_of_a_run_without_it(tmp_path):
    ends = []
    for callbacks in ((), (Compile("eager"),)):
        built = net_trainer(tmp_path, *callbacks, Evaluate(every(3)))
        built.train()
        ends.append((weights(built.model), [entry.get("eval_loss") for entry in built.state.log_history]))
    assert same_weights(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def undropped():
    """A model without dropout, whose draws `aot_eager` makes in an order of its own."""
    model = Net()
    for block in model.blocks:
        block.dropout.p = 0.0
    return model


def test_backward_is_compiled_too(tmp_path):
    plain, compiled = (
        net_trainer(tmp_path, *callbacks, model=undropped()) for callbacks in ((), (Compile("aot_eager"),))
    )
    plain.train()
    compiled.train()
    assert same_weights(weights(plain.model), weights(compiled.model))


@pytest.mark.slow
def test_inductor_trains_to_nearly_the_same_weights_and_twice_to_the_same(tmp_path):
    plain, once, again = (
        net_trainer(tmp_path, *callbacks, Evaluate(every(2)), model=undropped())
        for callbacks in ((), (Compile(),), (Compile(),))
    )
    for built in (plain, once, again):
        built.train()
    assert same_weights(weights(once.model), weights(again.model))
    for name, weight in weights(plain.model).items():
        torch.testing.assert_close(weights(once.model)[name], weight, rtol=1e-3, atol=1e-4)


def test_it_is_compiled_in_the_run_and_not_after(tmp_path):
    model, seen = Net(), []
    built = net_trainer(tmp_path, Compile("eager"), model=model)
    built.on("on_step_begin", lambda model: seen.append(model._compiled_call_impl is not None))
    built.train()
    assert seen == [True] * 6
    assert model._compiled_call_impl is None
    assert list(weights(model)) == list(weights(Net()))
    built.on("on_prediction_step", lambda model: seen.append(model._compiled_call_impl is not None))
    built.evaluate()
    assert seen[6:] == [True]
    assert model._compiled_call_impl is None


def test_the_model_is_given_back_after_an_error(tmp_path):
    built = net_trainer(tmp_path, Compile("eager"))

    def fail():
        raise Boom

    built.on("on_loss", fail)
    with pytest.raises(Boom):
        built.train()
    assert built.model._compiled_call_impl is None


def test_a_model_that_the_user_compiled_stays_so(tmp_path):
    model = Net()
    model.compile(backend="eager")
    own = model._compiled_call_impl
    net_trainer(tmp_path, Compile("eager"), model=model, max_steps=1).train()
    assert model._compiled_call_impl is own


def test_works_with_mixed_precision(tmp_path):
    plain, compiled = (
        net_trainer(tmp_path, MixedPrecision("bf16"), *callbacks, model=undropped(), max_steps=3)
        for callbacks in ((), (Compile("eager"),))
    )
    plain.train()
    compiled.train()
    assert same_weights(weights(plain.model), weights(compiled.model))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backend": "inducter"}, r"Compile\(backend='inducter'\): the backend is unknown; did you mean 'inductor'\?"),
        ({"mode": "max-autotun"}, r"Compile\(mode='max-autotun'\): the mode is unknown; did you mean 'max-autotune'\?"),
    ],
)
def test_unknown_names_are_refused(wrong, said):
    with pytest.raises(ArgumentError, match=said):
        Compile(**wrong)


@pytest.mark.parametrize("wrong", [{"torch_compile_backend": "inducter"}, {"torch_compile_mode": "fast"}], ids=str)
def test_wrong_arguments_are_named(tmp_path, wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ArgumentError, match=f"`{name}` is '{value}'.*Known: .*"):
        net_trainer(tmp_path, **wrong)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, None),
        ({"torch_compile": True}, Compile()),
        ({"torch_compile_backend": "aot_eager"}, Compile("aot_eager")),
        ({"torch_compile_mode": "max-autotune"}, Compile(mode="max-autotune")),
    ],
)
def test_arguments_spell_it(tmp_path, arguments, expected):
    assert net_trainer(tmp_path, **arguments).callbacks.get("Compile") == expected
