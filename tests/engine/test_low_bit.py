"""Optimizers of torchao: stochastic rounding of bfloat16 weights, and state with few bits in checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from support.callbacks import stop_at
from support.outcomes import history, same_weights, weights
from support.processes import run_on_two
from support.trainers import net_trainer
from trainbus import Checkpoint, HalfWeights, Log, every
from trainbus.engine.checkpoint.format.codec import encode, load_values
from trainbus.engine.checkpoint.format.tensor_file import write_tensors
from trainbus.engine.optim.low_bit import is_low_bit, seed_of, sharding_refusal
from trainbus.events import ArgumentError
from trainbus.events.errors import CheckpointError

torchao = pytest.importorskip("torchao.optim")

NAMES = ["adamw_torch_8bit", "adamw_torch_4bit"]
ROUNDING = "bf16_stochastic_round=True"


class Half(nn.Module):
    """A model of 8,449 bfloat16 weights. Its first weight is large enough for state with few bits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dropout, self.head = nn.Linear(64, 128), nn.Dropout(0.1), nn.Linear(128, 1)
        self.bfloat16()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.dropout(torch.tanh(self.layer(x.to(self.head.weight.dtype))))).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.mse_loss(logits.float(), labels), "logits": logits}


def samples() -> list[dict[str, torch.Tensor]]:
    return [{"x": row, "labels": row.sum()} for row in torch.randn(16, 64, generator=torch.Generator().manual_seed(0))]


@pytest.fixture(autouse=True)
def eager():
    """torchao compiles its update. Without the compiler it computes the same."""
    with torch.compiler.set_stance("force_eager"):
        yield


def build(folder: Path, *callbacks: Any, **options: Any) -> Any:
    options = {"model": Half(), "learning_rate": 1e-3, "train_dataset": samples(), **options}
    options = {"optim": "adamw_torch_8bit", "optim_args": ROUNDING, **options}
    return net_trainer(folder, *callbacks, **options)


def moved(folder: Path, model: nn.Module, **options: Any) -> torch.Tensor:
    """Return the changes of the first weight in 40 steps of a rate at which bfloat16 rounds most updates away."""
    before = model.layer.weight.detach().float().clone()
    build(folder, model=model, learning_rate=2e-5, max_steps=40, lr_scheduler_type="constant", **options).train()
    return model.layer.weight.detach().float() - before


# The rounding.


@pytest.mark.parametrize("name", NAMES)
def test_stochastic_rounding_moves_weights_that_rounding_to_nearest_does_not_move(name, tmp_path):
    # Near 1, the next bfloat16 numbers are 1.0078 and 0.9961, and an update is 2e-5.
    def ones() -> Half:
        model = Half()
        with torch.no_grad():
            model.layer.weight.fill_(1.0)
        return model

    nearest = moved(tmp_path / "nearest", ones(), optim="adamw_torch", optim_args=None)
    plain = moved(tmp_path / "plain", ones(), optim=name, optim_args=None)
    stochastic = moved(tmp_path / "stochastic", ones(), optim=name)
    expected = moved(tmp_path / "expected", ones().float(), optim=name, optim_args=None)
    assert not nearest.any()
    assert not plain.any()
    assert 0 < (stochastic != 0).float().mean() < 0.3
    along = (stochastic * expected.sign()).mean().item()
    assert along == pytest.approx(expected.abs().mean().item(), rel=0.2)


def test_the_noise_leaves_the_generator_of_the_program_alone(tmp_path):
    draws = {}
    for text in ("True", "False"):
        built = build(tmp_path / text, optim_args=f"bf16_stochastic_round={text}")
        draws[text] = []
        built.on("on_optimizer_step", lambda found=draws[text]: found.append(torch.get_rng_state()))
        built.train()
    assert len(draws["True"]) == 6
    assert all(map(torch.equal, draws["True"], draws["False"]))


def test_each_update_has_its_own_noise():
    assert seed_of(42, 0, 0) == seed_of(42, 0, 0)
    assert len({seed_of(42, 0, 0), seed_of(42, 1, 0), seed_of(42, 0, 1), seed_of(43, 0, 0)}) == 4


def test_a_second_training_repeats_the_noise(tmp_path):
    built = build(tmp_path, model=None, model_init=Half)
    built.train()
    first = weights(built.model)
    built.train()
    assert same_weights(weights(built.model), first)


def test_an_optimizer_of_the_program_serves_two_trainers(tmp_path):
    model = Half()
    optimizer = torchao.AdamW8bit(model.parameters(), lr=1e-3, bf16_stochastic_round=True)
    for name in ("first", "second"):
        build(tmp_path / name, model=model, optimizers=(optimizer, None)).train()
    assert len(optimizer._optimizer_step_pre_hooks) == 1


@pytest.mark.parametrize("beside", [[], [HalfWeights("bf16")]], ids=["float32", "master weights"])
def test_a_warning_names_an_option_without_effect(beside, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "trainbus")
    build(tmp_path, *beside, model=Half().float(), max_steps=1).train()
    assert "bf16_stochastic_round=True has no effect: no weight that the optimizer updates is bfloat16" in caplog.text


def test_bfloat16_weights_cause_no_warning(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "trainbus")
    build(tmp_path, max_steps=1).train()
    assert "has no effect" not in caplog.text


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_ranks_with_other_generator_states_keep_equal_weights(tmp_path):
    run_on_two(Path(__file__).with_name("low_bit_program.py"), tmp_path, timeout=120)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert not torch.equal(first.pop("generator"), second.pop("generator"))
    assert same_weights(first, second)


# Checkpoints.


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_resumed_run_equals_the_uninterrupted_run(name, asynchronous, tmp_path):
    options = {"optim": name}
    save = {"async_save": asynchronous}
    whole = build(tmp_path / "whole", Log(every(1)), **options)
    whole.train()
    broken = build(tmp_path / "broken", Log(every(1)), Checkpoint(every(3), **save), **options)
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed = build(tmp_path / "broken", Log(every(1)), Checkpoint(every(3), **save), **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(whole.model))
    assert history(resumed)[:-1] == history(whole)[:-1]
    left, right = (made.optimizer.state[made.model.layer.weight] for made in (resumed, whole))
    for key in ("exp_avg", "exp_avg_sq"):
        assert type(left[key]) is type(right[key])
        assert "OptimState" in type(left[key]).__name__
        assert torch.equal(left[key].codes, right[key].codes)
        assert torch.equal(left[key].scale, right[key].scale)


@pytest.mark.parametrize(("name", "limit"), [("adamw_torch_8bit", 2.3), ("adamw_torch_4bit", 1.2)])
def test_a_checkpoint_has_the_few_bits_of_the_state(name, limit, tmp_path):
    build(tmp_path, Checkpoint(every(6)), optim=name).train()
    path = tmp_path / "checkpoint-6" / "optimizer.safetensors"
    with safe_open(path, "pt") as file:
        tensors = [file.get_tensor(key) for key in file.keys()]  # noqa: SIM118 - not a dict
    tables = sum(tensor.nbytes for tensor in tensors if tensor.dtype is torch.float32 and tensor.numel() in (16, 256))
    assert (sum(tensor.nbytes for tensor in tensors) - tables) / 8449 < limit
    assert {tensor.dtype for tensor in tensors} == {torch.uint8, torch.float32, torch.bfloat16}


@pytest.mark.parametrize("kind", ["OptimState8bit", "OptimState4bit", "OptimStateFp8"])
def test_each_class_of_state_survives_the_format(kind, tmp_path):
    cls = getattr(__import__("torchao.optim.adam", fromlist=[kind]), kind)
    options = {} if kind == "OptimStateFp8" else {"signed": True}
    state = cls.zeros((64, 64), block_size=128, dtype=torch.bfloat16, **options)
    state.copy_(torch.randn(64, 64))
    loaded = through_a_file({"state": state, "plain": torch.ones(2)}, tmp_path)
    assert type(loaded["state"]) is cls
    assert loaded["state"].dtype is torch.bfloat16
    assert loaded["state"].block_size == state.block_size
    assert torch.equal(loaded["state"].dequantize(), state.dequantize())
    loaded["state"].copy_(state)  # the classes compare shapes and attributes here
    assert torch.equal(loaded["plain"], torch.ones(2))


def through_a_file(value: Any, folder: Path, change: Any = lambda text: text) -> Any:
    tensors, metadata = encode(value, "the state")
    metadata = {key: change(text) for key, text in metadata.items()}
    with open(folder / "values.safetensors", "wb") as file:
        write_tensors(file, tensors, metadata)
    return load_values(folder / "values.safetensors")


def test_a_class_that_a_checkpoint_does_not_know_is_not_imported(tmp_path):
    state = torchao.adam.OptimState8bit.zeros((64, 64))
    with pytest.raises(CheckpointError, match="a tensor of the class antigravity:Flight, which trainbus does not know"):
        through_a_file(state, tmp_path, lambda text: text.replace(json.loads(text)["__class__"], "antigravity:Flight"))
    import sys

    assert "antigravity" not in sys.modules


def test_other_tensors_that_consist_of_tensors_are_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(CheckpointError, match=r"the state\.x is a TwoTensor of torch\.testing.*Use a dense tensor"):
        encode({"x": TwoTensor(torch.ones(2), torch.ones(2))}, "the state")


# Ways to shard.


def test_ways_to_shard_are_refused():
    model = Half()
    optimizer = torchao.AdamW8bit(model.parameters())
    assert is_low_bit(optimizer)
    assert not is_low_bit(torch.optim.AdamW(model.parameters()))
    assert sharding_refusal(optimizer, "") == ""
    assert sharding_refusal(torch.optim.AdamW(model.parameters()), "FSDP") == ""
    assert "AdamW8bit of torchao does not work with FSDP" in sharding_refusal(optimizer, "FSDP")


def test_a_run_that_gathers_its_state_refuses_the_optimizer(tmp_path):
    built = build(tmp_path)
    built.on("on_setup", lambda run: run.seams.fill("Gathering", optimizer_state=lambda optimizer: {}))
    with pytest.raises(ArgumentError, match=r"AdamW8bit of torchao does not work with Gathering.*adamw_torch_fused"):
        built.train()
