"""Float8 training: which layers convert, what a run computes, and that nothing of it stays."""

from __future__ import annotations

import copy
import io
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import prune

from support.callbacks import Boom, stop_at
from support.models import Net, Wide, WideLayer, llama
from support.outcomes import history, same_weights, weights
from support.processes import run_on_two
from support.trainers import net_trainer
from trainbus import (
    EMA,
    Callback,
    Checkpoint,
    Compile,
    DataParallel,
    DeepSpeed,
    DryBatch,
    Evaluate,
    Float8,
    GradientCheckpointing,
    HalfWeights,
    KeepBest,
    Log,
    OptimizerInBackward,
    every,
)
from trainbus.events import ArgumentError, ModelError
from trainbus.integrations.torchao import hardware_problem, linear_layers, matches

CONVERTED = ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"]


class Watching(Callback):
    """Keeps the rounded names: which linear layers return something else than their weights say."""

    def __init__(self) -> None:
        self.rounded: set[str] = set()

    def on_step_begin(self, model: nn.Module) -> None:
        self.rounded = rounded(model)


def rounded(model: nn.Module) -> set[str]:
    """Return the names of the linear layers whose output is not that of their weights in the usual precision."""
    found = set()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            x = torch.randn(4, layer.in_features, generator=torch.Generator().manual_seed(0)).to(layer.weight.dtype)
            with torch.no_grad():
                usual = nn.functional.linear(x, layer.weight, layer.bias)
                if not torch.allclose(layer(x), usual, rtol=1e-5, atol=1e-5):
                    found.add(name)
    return found


def build(folder: Path, *callbacks: Any, **options: Any) -> Any:
    """Build a trainer of 6 steps of a `Wide` model."""
    options = {"model": Wide(), "learning_rate": 0.01, **options}
    return net_trainer(folder, *callbacks, **options)


def emulated(**options: Any) -> Float8:
    return Float8(emulate=True, **options)


# The decision.


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("lm_head", "lm_head", True),
        ("model.lm_head", "lm_head", True),
        ("lm_head.out", "lm_head", True),
        ("my_lm_head", "lm_head", False),
        ("model.layers.0.up", "layers.0", True),
        ("model.layers.01.up", "layers.0", False),
        ("model.layers.3.up", "layers.*.up", True),
        ("q.lora_A.default", "lora_*", True),
        ("up", "model", False),
    ],
)
def test_a_pattern_stands_for_whole_parts_of_a_name(name, pattern, expected):
    assert matches(name, pattern) is expected


def test_layers_of_other_sizes_classes_and_dtypes_stay():
    model = nn.ModuleDict(
        {
            "good": nn.Linear(16, 32, bias=False),
            "narrow": nn.Linear(16, 24),
            "lm_head": nn.Linear(16, 32),
            "attention": nn.MultiheadAttention(16, 2),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
            "exact": nn.Linear(16, 16).double(),
        }
    )
    layers, kept = linear_layers(model, ("lm_head",))
    assert [*layers] == ["good"]
    assert kept == {
        "narrow": "its sizes 16 and 24 are not both multiples of 16",
        "lm_head": "`skip` has 'lm_head'",
        "attention.out_proj": "its class is NonDynamicallyQuantizableLinear and not nn.Linear",
        "normed": "its class is ParametrizedLinear and not nn.Linear",
        "exact": "its weights are torch.float64",
    }


def test_a_pruned_weight_and_a_replaced_forward_stay():
    pruned, replaced = nn.Linear(16, 16), nn.Linear(16, 16)
    prune.identity(pruned, "weight")
    replaced.forward = lambda x: x
    _, kept = linear_layers(nn.ModuleList([pruned, replaced]), ())
    assert kept == {
        "0": "its weight or its bias is computed from other parameters",
        "1": "its forward was replaced",
    }


def test_the_output_layer_that_a_model_names_stays():
    model = llama()
    model.set_output_embeddings(nn.Linear(16, 32))
    model.other = model.lm_head
    layers, kept = linear_layers(model, ())
    assert kept["lm_head"] == "it is the output layer"
    assert "lm_head" not in layers


@pytest.mark.parametrize(
    ("device", "capability", "problem"),
    [
        ("cpu", None, "this run is on cpu"),
        ("cuda", (8, 0), "the compute capability of this GPU is 8.0"),
        ("cuda", (8, 9), ""),
        ("cuda", (9, 0), ""),
        ("cuda", (10, 0), ""),
    ],
)
def test_the_hardware_must_multiply_float8(device, capability, problem):
    assert hardware_problem(device, capability) == problem


# A run.


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_the_chosen_layers_compute_in_float8_during_the_training(recipe, tmp_path, caplog):
    caplog.set_level(logging.INFO, "trainbus")
    watching = Watching()
    built = build(tmp_path, emulated(recipe=recipe), watching)
    before = {name: type(module) for name, module in built.model.named_modules()}
    losses = [built.train().training_loss, build(tmp_path / "usual").train().training_loss]
    assert watching.rounded == {*CONVERTED}
    assert rounded(built.model) == set()
    assert {name: type(module) for name, module in built.model.named_modules()} == before
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert "Float8 converts 4 linear layers, which have 95% of the weights." in caplog.text
    assert "head (`skip` has 'head')" in caplog.text


def test_skip_chooses_the_layers(tmp_path):
    watching = Watching()
    build(tmp_path, emulated(skip=("layers.0", "head")), watching).train()
    assert watching.rounded == {"layers.1.up", "layers.1.down"}


def test_evaluations_compute_in_float8_during_the_training_only(tmp_path):
    built = build(tmp_path, emulated(), Evaluate(every(6)))
    built.train()
    within = [entry["eval_loss"] for entry in built.state.log_history if "eval_loss" in entry][-1]
    after = built.evaluate()["eval_loss"]
    assert after != within
    assert after == pytest.approx(within, rel=0.1)
    usual = build(tmp_path / "usual")
    usual.model.load_state_dict(built.model.state_dict())
    assert usual.evaluate()["eval_loss"] == after
    assert torch.equal(
        torch.as_tensor(usual.predict(built.eval_dataset).predictions),
        torch.as_tensor(built.predict(built.eval_dataset).predictions),
    )


@pytest.mark.parametrize("where", ["on_batch", "on_gradients", "on_evaluate_begin", "on_save_begin"])
def test_an_exception_leaves_the_usual_layers(where, tmp_path):
    built = build(tmp_path, emulated(), Evaluate(every(2)), Checkpoint(every(2)))

    def fail() -> None:
        assert rounded(built.model) == {*CONVERTED}
        raise Boom

    built.on(where, fail)
    with pytest.raises(Boom):
        built.train()
    assert rounded(built.model) == set()
    assert not any("forward" in vars(module) or "__getstate__" in vars(module) for module in built.model.modules())


def test_a_failing_setup_leaves_the_usual_layers(tmp_path):
    class Failing(Callback):
        def on_setup(self) -> None:
            raise Boom

    built = build(tmp_path, emulated(), Failing())
    with pytest.raises(Boom):
        built.train()
    assert rounded(built.model) == set()


def test_copies_and_pickles_made_during_training_are_plain_models(tmp_path):
    built = build(tmp_path, emulated())
    made: list[nn.Module] = []

    def copy_it(model: nn.Module) -> None:
        stream = io.BytesIO()
        torch.save(model, stream)
        stream.seek(0)
        made[:] = [copy.deepcopy(model), torch.load(stream, weights_only=False)]

    built.on("on_step_end", copy_it)
    built.train()
    for model in made:
        assert rounded(model) == set()
        assert same_weights(weights(model), weights(built.model))
        model.layers[0].up.weight.data.zero_()
    assert built.model.layers[0].up.weight.abs().sum() > 0


def test_a_resumed_run_equals_the_uninterrupted_run(tmp_path):
    whole = build(tmp_path / "whole", emulated(), Log(every(1)))
    whole.train()
    broken = build(tmp_path / "broken", emulated(), Log(every(1)), Checkpoint(every(3)))
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed = build(tmp_path / "broken", emulated(), Log(every(1)), Checkpoint(every(3)))
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(whole.model))
    assert history(resumed)[:-1] == history(whole)[:-1]


@pytest.mark.parametrize("first", [True, False])
def test_a_run_resumes_with_or_without_the_callback(first, tmp_path):
    def callbacks(used: bool) -> list[Any]:
        return [Checkpoint(every(3)), *([emulated()] if used else [])]

    build(tmp_path, *callbacks(first), max_steps=3).train()
    saved = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    assert saved.keys() == Wide().state_dict().keys()
    resumed, at_start = build(tmp_path, *callbacks(not first)), {}
    resumed.on("on_step_begin", lambda model: at_start or at_start.update(weights(model)))
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(at_start, saved)
    assert resumed.state.global_step == 6


def test_the_best_model_is_loaded_into_the_usual_layers(tmp_path):
    built = build(tmp_path, emulated(), Evaluate(every(2)), Checkpoint(every(2)), KeepBest("eval_loss"))
    built.train()
    assert rounded(built.model) == set()
    best = Path(built.state.best_model_checkpoint)
    assert same_weights(weights(built.model), load_file(best / "model.safetensors"))


def test_tied_layers_stay_tied(tmp_path):
    model = Wide()
    model.layers[1].up.weight = model.layers[0].up.weight
    built = build(tmp_path, emulated(), model=model)
    built.train()
    assert built.model.layers[1].up.weight is built.model.layers[0].up.weight
    assert isinstance(built.model.layers[0].up.weight, nn.Parameter)


def test_a_shared_layer_converts_once(tmp_path):
    model, watching = Wide(), Watching()
    model.layers[1].up = model.layers[0].up
    build(tmp_path, emulated(), watching, model=model).train()
    assert watching.rounded == {"layers.0.up", "layers.0.down", "layers.1.down"}


# Beside other callbacks.


def outcome(folder: Path, *callbacks: Any, **options: Any) -> dict[str, torch.Tensor]:
    watching = Watching()
    built = build(folder, emulated(), *callbacks, watching, **options)
    built.train()
    assert watching.rounded == {*CONVERTED}
    assert rounded(built.model) == set()
    return weights(built.model)


@pytest.mark.parametrize(
    "beside",
    [
        lambda: GradientCheckpointing(blocks=(WideLayer,)),
        lambda: GradientCheckpointing(options={"use_reentrant": True}, blocks=(WideLayer,)),
        lambda: DataParallel(devices=1),
        lambda: DryBatch(),
    ],
    ids=["checkpointing", "reentrant", "one device", "dry batch"],
)
def test_other_callbacks_do_not_change_the_numbers(beside, tmp_path):
    if isinstance(made := beside(), DataParallel):
        made = DataParallel(devices=1)
    assert same_weights(outcome(tmp_path / "beside", made), outcome(tmp_path / "alone"))


def test_the_update_in_backward_does_not_change_the_numbers(tmp_path):
    alone = outcome(tmp_path / "alone", max_grad_norm=0)
    assert same_weights(outcome(tmp_path / "beside", OptimizerInBackward(), max_grad_norm=0), alone)


@pytest.mark.parametrize("regions", ["blocks", ()], ids=["blocks", "whole"])
def test_compiled_code_computes_in_float8(regions, tmp_path):
    torch._dynamo.reset()
    compiled = outcome(tmp_path / "beside", Compile("aot_eager", regions=regions))
    usual = outcome(tmp_path / "alone")
    assert all(torch.allclose(compiled[name], usual[name], atol=1e-3) for name in usual)


def test_blocks_share_compiled_code(tmp_path, caplog):
    caplog.set_level(logging.INFO, "trainbus")
    torch._dynamo.reset()
    outcome(tmp_path / "float8", Compile("eager", regions="blocks"))
    torch._dynamo.reset()
    build(tmp_path / "usual", Compile("eager", regions="blocks")).train()
    counts = [line.rpartition("share ")[2] for line in caplog.text.splitlines() if "modules share" in line]
    assert len(counts) == 2
    assert counts[0] == counts[1] == "1 newly compiled graphs."


@pytest.mark.parametrize("half", [{"bf16": True}, {"callback": True}], ids=["autocast", "half weights"])
def test_half_precision_computes_in_float8(half, tmp_path):
    beside = [HalfWeights("bf16")] if "callback" in half else []
    options = {} if beside else half
    seen = []

    class Dtypes(Callback):
        def on_loss(self, model: nn.Module) -> None:
            seen.append(model.layers[0].up.weight.dtype)

    trained = build(tmp_path, emulated(), *beside, Dtypes(), **options)
    losses = [trained.train().training_loss, build(tmp_path / "usual", *beside, **options).train().training_loss]
    assert {*seen} == {torch.bfloat16 if beside else torch.float32}
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert {weight.dtype for weight in weights(trained.model).values()} == {torch.float32}


def test_an_average_of_the_weights_is_evaluated(tmp_path):
    built = build(tmp_path, emulated(), EMA(decay=0.5), Evaluate(every(3)))
    built.train()
    losses = [entry["eval_loss"] for entry in built.state.log_history if "eval_loss" in entry]
    assert len(losses) == 2
    assert built.evaluate()["eval_loss"] == pytest.approx(losses[-1], rel=0.5)


def test_adapters_stay_and_their_frozen_layers_convert(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=16, target_modules=["up", "down"])
    model = peft.inject_adapter_in_model(config, Wide())
    watching = Watching()
    frozen = {name: value for name, value in weights(model).items() if "base_layer" in name}
    built = build(tmp_path, emulated(), watching, model=model)
    built.train()
    assert watching.rounded >= {f"{name}.base_layer" for name in CONVERTED}
    assert not any("lora" in name for name in watching.rounded)
    assert all(torch.equal(weights(built.model)[name], value) for name, value in frozen.items())
    assert weights(built.model)["layers.0.up.lora_B.default.weight"].abs().sum() > 0


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_ways_to_shard_reach_the_weights_of_ddp(tmp_path):
    run_on_two(Path(__file__).with_name("float8_program.py"), tmp_path, timeout=120)
    found = {
        way: load_file(tmp_path / way / "checkpoint-6" / "model.safetensors") for way in ("ddp", "stage1", "stage3")
    }
    assert found["ddp"].keys() == Wide().state_dict().keys()
    assert same_weights(found["stage1"], found["ddp"])
    assert same_weights(found["stage3"], found["ddp"])


# What is refused.


def test_a_machine_without_float8_is_refused_before_the_first_step(tmp_path):
    built = build(tmp_path, Float8())
    with pytest.raises(ArgumentError, match=r"compute capability 8\.9 or later.* this run is on cpu.*emulate=True"):
        built.train()
    assert built.state.global_step == 0
    assert rounded(built.model) == set()


def test_a_machine_without_float8_evaluates(tmp_path):
    assert build(tmp_path, Float8()).evaluate()["eval_loss"] > 0


def test_a_model_without_a_layer_to_convert_is_refused(tmp_path):
    built = build(tmp_path, emulated(), model=Net())
    with pytest.raises(ModelError, match=r"converts no layer of Net: blocks\.0\.linear \(its sizes 6 and 6 are not"):
        built.train()


def test_a_name_that_no_layer_has_is_refused(tmp_path):
    built = build(tmp_path, emulated(skip=("layer.0",)))
    with pytest.raises(ModelError, match=r"no linear layer of Wide has the name 'layer\.0'"):
        built.train()


def test_wrong_options_are_refused():
    with pytest.raises(ArgumentError, match=r"'rowise'.*did you mean 'rowwise'"):
        Float8("rowise")
    with pytest.raises(ArgumentError, match=r"skip=\('head',\)"):
        Float8(skip="head")


def test_callbacks_that_move_the_weights_are_refused(tmp_path):
    pytest.importorskip("deepspeed")
    with pytest.raises(ArgumentError, match="Float8 does not work with DeepSpeed: it moves the weights"):
        build(tmp_path, emulated(), DeepSpeed({}))
    fairscale = pytest.importorskip("trainbus.integrations.fairscale.fsdp")
    with pytest.raises(ArgumentError, match="Float8 does not work with FairscaleFSDP"):
        build(tmp_path, emulated(), fairscale.FairscaleFSDP())


def test_several_gpus_of_one_process_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="Float8 does not work with DataParallel: its replacement of a forward"):
        build(tmp_path, emulated(), DataParallel(devices=2))
