"""torch.compile: the same weights as without it, and the original model after the run."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch

from support.callbacks import Boom, stop_at
from support.models import Net
from support.outcomes import same_weights, weights
from support.processes import run_on_two
from support.trainers import net_trainer
from trainbus import Checkpoint, Compile, Evaluate, GradientCheckpointing, MixedPrecision, every
from trainbus.events import ArgumentError
from trainbus.events.errors import ModelError


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
def test_arguments_build_the_callback(tmp_path, arguments, expected):
    assert net_trainer(tmp_path, **arguments).callbacks.get("Compile") == expected


# Regions.


class Layer(torch.nn.Module):
    """One of twelve equal blocks."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)
        self.inner = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())

    def forward(self, x):
        return x + self.inner(self.linear(self.norm(x)))


class Deep(torch.nn.Module):
    """Twelve equal blocks and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(12))
        self.head = torch.nn.Linear(6, 1)

    def forward(self, x, labels=None):
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.mse_loss(logits, labels), "logits": logits}


def compiled_calls(model):
    """Return the class of each compiled module, without repetitions."""
    return {type(module) for module in model.modules() if module._compiled_call_impl is not None}


def ended(folder, *callbacks, **options):
    """Train a `Deep`. Return its weights, its metrics, and the classes of the modules that were compiled in steps."""
    seen = []
    built = net_trainer(folder, *callbacks, Evaluate(every(3)), model=Deep(), **options)
    built.on("on_step_end", lambda model: seen.append(compiled_calls(model)))
    built.train()
    assert not compiled_calls(built.model)
    return weights(built.model), [entry.get("eval_loss") for entry in built.state.log_history], seen[-1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return ended(tmp_path_factory.mktemp("plain"))


def first_step(caplog):
    """Return how many modules and graphs the first steps name."""
    said = [record.getMessage() for record in caplog.records if "The first step took" in record.getMessage()]
    return [[int(number) for number in re.findall(r"\b(\d+) (?:modules|newly)", line)] for line in said]


@pytest.mark.parametrize("regions", ["blocks", (Layer,), ("Layer",), (Layer, torch.nn.Linear)], ids=str)
def test_regions_train_to_the_weights_of_a_run_without_them(tmp_path, plain, regions, caplog):
    caplog.set_level("INFO")
    ends = ended(tmp_path, Compile("aot_eager", regions=regions))
    assert same_weights(ends[0], plain[0])
    assert ends[1] == plain[1]
    # The linear layers of the blocks are part of the blocks. Only the head is a region of its own.
    heads = len(regions) == 2
    assert ends[2] == ({Layer, torch.nn.Linear} if heads else {Layer})
    # The input of the first block has no gradient, hence two graphs for the blocks.
    assert first_step(caplog) == [[12 + heads, 2 + heads]]


def test_recomputed_blocks_are_compiled_and_share_their_code(tmp_path, plain, caplog):
    caplog.set_level("INFO")
    recomputing = GradientCheckpointing(blocks=(Layer,))
    for callbacks in ((Compile("aot_eager", regions=(Layer,)), recomputing), (recomputing, Compile("aot_eager"))):
        torch.compiler.reset()
        caplog.clear()
        assert same_weights(ended(tmp_path, *callbacks)[0], plain[0])
        [numbers] = first_step(caplog)
        assert 1 <= numbers[-1] <= 2


@pytest.mark.parametrize("options", [{}, {"regions": "blocks"}], ids=str)
def test_modules_of_torch_are_compiled_too(tmp_path, caplog, options):
    caplog.set_level("INFO")
    layers = [torch.nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.ModuleList(layers), torch.nn.Linear(6, 1))
    model[0].forward = lambda x: layers[2](layers[1](layers[0](x.unsqueeze(1)))).squeeze(1)
    data = torch.utils.data.TensorDataset(torch.randn(16, 6), torch.randn(16, 1))
    criterion = torch.nn.functional.mse_loss
    more = {"model": model, "train_dataset": data, "eval_dataset": None, "criterion": criterion, "max_steps": 2}
    net_trainer(tmp_path, Compile("eager", **options), **more).train()
    [numbers] = first_step(caplog)
    assert numbers == ([3, 2] if options else [1])


def test_classes_of_regions_do_not_share_the_limit_of_graphs(tmp_path, caplog):
    caplog.set_level("INFO")
    regions = (Layer, torch.nn.Linear)
    with torch._dynamo.config.patch(recompile_limit=2):
        net_trainer(tmp_path, Compile("eager", regions=regions), model=Deep(), max_steps=1).train()
    assert first_step(caplog) == [[13, 3]]


def test_a_run_logs_its_first_step_once(tmp_path, caplog):
    caplog.set_level("INFO")
    net_trainer(tmp_path, Compile("eager", regions=(Layer,)), model=Deep()).train()
    assert len(first_step(caplog)) == 1


def test_checkpoints_with_and_without_regions_are_exchangeable(tmp_path, plain):
    for first, then in (((), (Compile("eager", regions=(Layer,)),)), ((Compile("eager", regions=(Layer,)),), ())):
        folder = tmp_path / str(len(first))
        started = net_trainer(folder, *first, Checkpoint(every(3)), model=Deep())
        started.on("on_step_end", stop_at(3))
        started.train()
        resumed = net_trainer(folder, *then, Checkpoint(every(3)), model=Deep())
        resumed.train(resume_from_checkpoint=True)
        assert same_weights(weights(resumed.model), plain[0])


def test_copies_of_a_model_in_a_run_are_not_compiled(tmp_path):
    copies = []

    def copy_model(model):
        copies.extend((copy.deepcopy(model), pickle.loads(pickle.dumps(model))))
        assert all(same_weights(weights(each), weights(model)) for each in copies)

    built = net_trainer(tmp_path, Compile("eager", regions=(Layer,)), model=Deep())
    built.on("on_step_end", copy_model, once=1)
    built.train()
    assert len(copies) == 2
    assert not any(compiled_calls(each) for each in copies)


def test_regions_are_given_back_after_an_error(tmp_path):
    model = Deep()
    model.layers[3].compile(backend="eager")
    own = model.layers[3]._compiled_call_impl
    built = net_trainer(tmp_path, Compile("eager", regions="blocks"), model=model)

    def fail():
        raise Boom

    built.on("on_loss", fail)
    with pytest.raises(Boom):
        built.train()
    assert [module for module in model.modules() if module._compiled_call_impl is not None] == [model.layers[3]]
    assert model.layers[3]._compiled_call_impl is own


@pytest.mark.parametrize(
    ("regions", "said"),
    [
        ((torch.nn.Conv1d,), "Deep has no module of the class 'Conv1d'"),
        (("Lyaer",), "Deep has no module of the class 'Lyaer'; did you mean 'Layer'?"),
        ((torch.nn.ModuleList,), r"Compile\(regions=\(ModuleList,\)\): the class has no forward"),
    ],
)
def test_regions_that_cannot_be_compiled_are_refused(tmp_path, regions, said):
    with pytest.raises(ModelError, match=said):
        net_trainer(tmp_path, Compile("eager", regions=regions), model=Deep()).train()


def test_a_model_without_blocks_is_refused(tmp_path):
    with pytest.raises(ModelError, match="finds no blocks in Net: it has no nn"):
        net_trainer(tmp_path, Compile("eager", regions="blocks")).train()


def test_another_text_than_blocks_is_refused():
    with pytest.raises(ArgumentError, match=r"the only text is 'blocks'. Write classes as a tuple: regions=\('Layer'"):
        Compile(regions="Layer")


@pytest.mark.slow
def test_inductor_regions_train_to_nearly_the_same_weights(tmp_path, plain):
    compiled = ended(tmp_path, Compile(regions=(Layer,)))[0]
    for name, weight in plain[0].items():
        torch.testing.assert_close(compiled[name], weight, rtol=1e-3, atol=1e-4)


def test_two_ranks_train_compiled_regions_as_without_them(tmp_path):
    """The program also runs CollectGarbage on both ranks."""
    program = Path(__file__).with_name("memory_program.py")
    run_on_two(program, tmp_path, timeout=60)
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-0", "done-1"]
