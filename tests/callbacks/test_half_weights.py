"""Level O2: weights in half precision, float32 masters for the optimizer, and an exact resume."""

from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from support.callbacks import Boom, scripted, stop_at
from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, saved_steps, weights
from support.trainers import net_trainer
from trainbus import EMA, Checkpoint, Evaluate, HalfWeights, KeepBest, MixedPrecision, NaNGuard, Stage, every
from trainbus.callbacks.precision import half_weights, master_weights
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.events import ArgumentError, NonFiniteError

BF16, WHOLE = torch.bfloat16, torch.float32


class Normed(Net):
    """Has a layer whose weights stay in float32."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.blocks.append(nn.LayerNorm(6))


def masters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def test_training_uses_half_weights_and_float32_masters(tmp_path):
    model = Normed()
    built = net_trainer(tmp_path, HalfWeights("bf16"), Evaluate(every(3)), model=model)
    seen = []

    def look(model, optimizer):
        kept = {name for name, weight in model.named_parameters() if weight.dtype == WHOLE}
        grads = {weight.grad.dtype for weight in masters(optimizer) if weight.grad is not None}
        seen.append((kept, {weight.dtype for weight in masters(optimizer)}, grads))
        left = [name for name, weight in model.named_parameters() if weight.grad is not None and name not in kept]
        assert left == []

    built.on("on_pre_optimizer_step", look)
    inside = []
    model.head.register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))
    built.train()
    assert len(seen) == 6
    assert all(look == ({"blocks.2.weight", "blocks.2.bias"}, {WHOLE}, {WHOLE}) for look in seen)
    assert set(inside) == {BF16}
    assert {weight.dtype for weight in model.parameters()} == {WHOLE}
    assert all(weight.grad is None for weight in model.parameters())
    assert "forward" not in vars(model)


def by_hand(batches, max_norm):
    """Train as level O2 says, with torch alone."""
    model = Net()
    names = [name for name, _ in model.named_parameters()]
    whole = {name: nn.Parameter(weight.detach().clone()) for name, weight in model.named_parameters()}
    model.to(BF16)
    optimizer = torch.optim.AdamW(whole.values(), lr=0.05, weight_decay=0.0)
    for batch, randomness in batches:
        torch.set_rng_state(randomness)
        model.train()
        with torch.autocast("cpu", dtype=BF16):
            logits = model(batch["x"])["logits"]
        nn.functional.mse_loss(logits.float(), batch["labels"]).backward()
        for name, weight in model.named_parameters():
            whole[name].grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_([whole[name] for name in names], max_norm)
        optimizer.step()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(whole[name])
    return {name: weight.detach() for name, weight in whole.items()}


class LogitsOnly(Net):
    def forward(self, x):
        return super().forward(x)["logits"]


def test_a_training_is_that_of_torch_by_hand_clipping_included(tmp_path):
    model = LogitsOnly()
    options = {"lr_scheduler_type": "constant", "optim": "adamw_torch", "criterion": nn.functional.mse_loss}
    built = net_trainer(tmp_path, HalfWeights(), model=model, max_grad_norm=0.05, **options)
    batches, norms = [], []
    built.on("on_batch", lambda batch: batches.append((batch, torch.get_rng_state())))
    built.on("on_pre_optimizer_step", lambda optimizer: norms.append(norm_of(masters(optimizer))))
    built.train()
    assert same_weights(weights(model), by_hand(batches, 0.05))
    assert norms == pytest.approx([0.05] * 6, rel=1e-4)


def norm_of(parameters):
    return torch.linalg.vector_norm(torch.cat([parameter.grad.flatten() for parameter in parameters])).item()


def test_is_level_o1_to_the_bit_where_autocast_halves_every_weight(tmp_path):
    """It halves the weights of linear layers for each batch; here they are halved once in a step, which is the same."""
    ends = []
    for kind in (HalfWeights, MixedPrecision):
        built = net_trainer(tmp_path, kind("bf16"))
        built.train()
        ends.append(weights(built.model))
    assert same_weights(*ends)


@pytest.mark.parametrize("stop", [2, 3])
def test_a_checkpoint_resumes_bit_for_bit(tmp_path, stop):
    def build(folder):
        return net_trainer(tmp_path / folder, HalfWeights(), Checkpoint(every(stop)))

    unbroken = build("unbroken")
    unbroken.train()
    broken = build("broken")
    broken.on("on_step_end", stop_at(stop))
    broken.train()
    halved = load_file(tmp_path / "broken" / f"checkpoint-{stop}" / "model.safetensors")
    assert {tensor.dtype for tensor in halved.values()} == {BF16}
    kept = load_values(tmp_path / "broken" / f"checkpoint-{stop}" / "callbacks.safetensors")["callbacks"]["HalfWeights"]
    assert {tensor.dtype for tensor in kept.values()} == {WHOLE}
    assert same_weights(kept, weights(broken.model)), "the run that was stopped ends with its masters"
    resumed = build("broken")
    resumed.train(resume_from_checkpoint=str(tmp_path / "broken" / f"checkpoint-{stop}"))
    assert resumed.state.global_step == 6
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_resumes_from_a_checkpoint_of_float32_weights(tmp_path):
    """One that another level wrote: nothing of its digits is lost."""
    first = net_trainer(tmp_path, MixedPrecision(), Checkpoint(every(3)))
    first.on("on_step_end", stop_at(3))
    first.train()
    before = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    second = net_trainer(tmp_path, HalfWeights(), Checkpoint(every(3)))
    at_begin = []
    second.on(
        "on_train_begin", lambda optimizer: at_begin.extend(master.detach().clone() for master in masters(optimizer))
    )
    second.train(resume_from_checkpoint=True)
    assert all(any(torch.equal(tensor, master) for master in at_begin) for tensor in before.values())


@pytest.mark.parametrize("optimizer", [None, "given"])
def test_a_second_training_keeps_the_optimizer(tmp_path, optimizer):
    """What the first one left in the optimizer belongs to the weights again, states and all."""
    model = Net()
    given = {}
    if optimizer is not None:
        given["optimizers"] = (torch.optim.AdamW(model.parameters(), lr=0.05), None)
    built = net_trainer(tmp_path, HalfWeights(), model=model, **given)
    built.train()
    assert {id(weight) for weight in masters(built.optimizer)} == {id(weight) for weight in model.parameters()}
    assert {id(weight) for weight in built.optimizer.state} == {id(weight) for weight in model.parameters()}
    first = weights(model)
    built.train()
    second = weights(model)
    assert not same_weights(first, second)
    assert {state["step"].item() for state in built.optimizer.state.values()} == {12}


def test_the_best_weights_stay(tmp_path):
    callbacks = (HalfWeights(), Evaluate(every(2)), KeepBest("score"), Checkpoint(every(2)))
    built = net_trainer(tmp_path, *callbacks, compute_metrics=scripted([0.1, 0.9, 0.3]))
    built.train()
    assert saved_steps(tmp_path) == [2, 4, 6]
    best = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert same_weights({name: weight.to(BF16) for name, weight in weights(built.model).items()}, best)
    assert {weight.dtype for weight in built.model.parameters()} == {WHOLE}


def test_gradients_that_are_not_finite_are_seen(tmp_path):
    built = net_trainer(tmp_path, HalfWeights(), NaNGuard("raise"))
    built.on("on_loss", lambda run, loss: setattr(run, "loss", loss * float("nan")), once=3)
    with pytest.raises(NonFiniteError):
        built.train()
    assert all(torch.isfinite(weight).all() for weight in built.model.parameters())


def test_gives_everything_back_after_an_error(tmp_path):
    built = net_trainer(tmp_path, HalfWeights())

    def fail():
        raise Boom

    built.on("on_gradients", fail, once=3)
    with pytest.raises(Boom):
        built.train()
    assert {weight.dtype for weight in built.model.parameters()} == {WHOLE}
    assert built.evaluate(net_samples(4))["eval_loss"] > 0


def test_frozen_weights_stay(tmp_path):
    model = Net()
    model.blocks[0].linear.weight.requires_grad_(False)
    frozen = model.blocks[0].linear.weight.detach().clone()
    net_trainer(tmp_path, HalfWeights(), model=model).train()
    assert torch.equal(model.blocks[0].linear.weight, frozen)
    assert not model.blocks[0].linear.weight.requires_grad


def test_accumulated_gradients_train_like_one_large_batch(tmp_path):
    built = net_trainer(tmp_path, HalfWeights(), gradient_accumulation_steps=2, per_device_train_batch_size=2)
    whole = net_trainer(tmp_path, HalfWeights(), model=(other := Net()))
    for module in (*built.model.modules(), *other.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    built.train()
    whole.train()
    assert all(torch.allclose(one, two, atol=0.05) for one, two in zip(built.model.parameters(), other.parameters()))


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        ({"bf16": True, "fp16_opt_level": "O2"}, "HalfWeights", HalfWeights("bf16")),
        ({"bf16": True, "fp16_opt_level": "O2"}, "MixedPrecision", None),
        ({"bf16": True, "fp16_opt_level": "O0"}, "MixedPrecision", None),
        ({"bf16": True, "fp16_opt_level": "O0"}, "HalfWeights", None),
        ({"bf16": True}, "HalfWeights", None),
        ({"bf16": True}, "MixedPrecision", MixedPrecision("bf16")),
        ({"fp16_opt_level": "O2"}, "HalfWeights", None),
        ({"fp16": True, "fp16_opt_level": "O2", "scale_loss": 512.0}, "HalfWeights", HalfWeights("fp16", 512.0)),
    ],
)
def test_arguments_build_the_callback(tmp_path, arguments, name, expected):
    assert net_trainer(tmp_path, **arguments).callbacks.get(name) == expected


def test_fp16_on_a_cpu_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="fp16 needs a CUDA device"):
        net_trainer(tmp_path, fp16=True, fp16_opt_level="O2").train()
    with pytest.raises(ArgumentError, match=r"HalfWeights\('fp8'\)"):
        HalfWeights("fp8")


@pytest.mark.parametrize(
    "wrong", [{"fp16_opt_level": "O3"}, {"scale_loss": 0.0}, {"scale_loss": float("inf")}], ids=str
)
def test_wrong_arguments_are_named(tmp_path, wrong):
    [name] = wrong
    with pytest.raises(ArgumentError, match=f"`{name}` is"):
        net_trainer(tmp_path, **wrong)


@pytest.mark.gpu
def test_fp16_scales_what_reaches_the_masters(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")

    def model() -> Net:
        """Return a model without dropout, because a GPU draws other masks in float16 than in float32."""
        net = Net()
        for block in net.blocks:
            block.dropout.p = 0.0
        return net

    built = net_trainer(tmp_path, HalfWeights("fp16", initial_scale=2.0**10), model=model(), use_cpu=False)
    norms = []
    built.on("on_gradients", lambda optimizer: norms.append(norm_of(masters(optimizer))))
    built.train()
    plain = net_trainer(tmp_path, model=model(), use_cpu=False)
    plain_norms = []
    plain.on("on_gradients", lambda optimizer: plain_norms.append(norm_of(masters(optimizer))))
    plain.train()
    assert norms[0] == pytest.approx(plain_norms[0], rel=0.05)


# Elements that the program changes.


@pytest.mark.parametrize(
    "weight",
    [torch.rand(7, 3), torch.rand(3, 7).t(), torch.rand(()), torch.rand(0, 3), torch.rand(5, 2), torch.rand(8, 4)],
)
@pytest.mark.parametrize("chunk", [1, 5, 6, 2**24])
def test_only_changed_elements_reach_the_master_weight(monkeypatch, weight, chunk):
    monkeypatch.setattr(master_weights, "CHUNK", chunk)
    master, half = nn.Parameter(weight.clone()), weight.to(BF16)
    expected = master.detach().clone()
    master_weights.copy_writes(master, half)
    assert torch.equal(master, expected)
    for index, value in (((0,) * half.dim(), 9.0), ((-1,) * half.dim(), float("nan"))):
        if half.numel():
            half[index] = expected[index] = value
    master_weights.copy_writes(master, half)
    assert torch.equal(master.nan_to_num(-1), expected.nan_to_num(-1))


def change(model):
    with torch.no_grad():
        model.head.weight[0, 0] = 3.0


@pytest.mark.parametrize("event", ["on_train_end", "on_best_loaded"])
def test_a_change_at_the_end_keeps_the_digits_of_other_elements(tmp_path, event):
    ends = []
    for changes in (False, True):
        callbacks = [] if event == "on_train_end" else [Evaluate(every(2)), KeepBest("score"), Checkpoint(every(2))]
        options = {"compute_metrics": scripted([0.1, 0.9, 0.3])} if callbacks else {}
        built = net_trainer(tmp_path / str(changes), HalfWeights(), *callbacks, **options)
        if changes:
            built.on(event, change, stage=Stage.RELEASE)
        built.train()
        ends.append(weights(built.model))
    before, after = ends
    assert after["head.weight"][0, 0] == 3.0
    before["head.weight"][0, 0] = 3.0
    assert same_weights(before, after)


@pytest.mark.parametrize("others", [[], [EMA(decay=0.5)]], ids=["alone", "with averages in checkpoints"])
def test_a_change_between_two_steps_stays(tmp_path, others):
    """The next step starts from it, and so does a run that resumes."""

    def build(folder):
        built = net_trainer(
            tmp_path / folder, *others, HalfWeights(), Checkpoint(every(3)), lr_scheduler_type="constant"
        )
        built.on("on_step_end", lambda model, state: change(model) if state.global_step == 3 else None, id="changes")
        return built

    unbroken = build("unbroken")
    unbroken.train()
    broken = build("broken")
    broken.on("on_step_end", stop_at(3))
    broken.train()
    kept = load_values(tmp_path / "broken" / "checkpoint-3" / "callbacks.safetensors")["callbacks"]["HalfWeights"]
    assert kept["head.weight"][0, 0] == 3.0
    others_kept = [not torch.equal(value, value.to(BF16).float()) for value in kept.values()]
    assert all(others_kept), "a master weight has only the digits of its weight"
    resumed = build("broken")
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))
    assert abs(unbroken.model.head.weight[0, 0].item() - 3.0) < 0.5


def write_data(weight):
    weight.data[0, 0] = 3.0


def swap_rows(weight):
    weight.data[:2] = weight.data[[1, 0]]


def write_numpy(weight):
    weight.detach().view(torch.int16).numpy()[0, 1] = 0x4040  # 3.0


def replace_data(weight):
    weight.data = weight.data * 2


def make_not_contiguous(weight):
    weight.data = weight.data.t().contiguous().t()
    weight.data[0, 0] = 3.0


WRITES = [write_data, swap_rows, write_numpy, replace_data, make_not_contiguous]


@pytest.mark.parametrize("hashed", [True, False], ids=["with xxhash", "without xxhash"])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_write_that_no_version_counter_counts_stays(tmp_path, monkeypatch, write, hashed):
    if not hashed:
        monkeypatch.setitem(sys.modules, "xxhash", None)

    def train(writes=True):
        built = net_trainer(tmp_path, HalfWeights())
        weight = built.model.blocks[0].linear.weight
        built.on("on_step_end", lambda: write(weight) if writes else None, once=3)
        built.train()
        return weights(built.model)

    found, without = train(), train(writes=False)
    monkeypatch.setattr(master_weights.KnownWeights, "may_differ", lambda *unused: True)
    compared = train()
    assert same_weights(found, compared)
    assert not same_weights(found, without)


def test_weights_without_a_write_are_not_compared(tmp_path, monkeypatch):
    pytest.importorskip("xxhash")
    compared = []
    monkeypatch.setattr(half_weights, "copy_writes", lambda master, weight: compared.append(weight))
    built = net_trainer(tmp_path, HalfWeights(), max_steps=6)
    built.train()
    assert len(compared) == len([*built.model.parameters()]), "only before the first update"
