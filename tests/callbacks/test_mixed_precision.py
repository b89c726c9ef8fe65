"""Half precision: bfloat16 inside the model, float32 outside, and the forward put back."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest
import torch

from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Evaluate, MixedPrecision, every
from trainbus.callbacks.precision.mixed_precision import to_float32
from trainbus.events import ArgumentError


def test_computes_in_bfloat16_and_returns_float32(tmp_path):
    model = Net()
    inside, outside = set(), set()
    model.head.register_forward_hook(lambda module, inputs, output: inside.add(output.dtype))
    built = net_trainer(tmp_path, MixedPrecision("bf16"), Evaluate(every(3)), model=model)
    built.on("on_loss", lambda outputs, loss: outside.update({outputs["logits"].dtype, loss.dtype}))
    built.train()
    assert inside == {torch.bfloat16}
    assert outside == {torch.float32}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    inside.clear()
    built.evaluate()
    assert inside == {torch.bfloat16}, "evaluating computes as training does"
    assert built.predict(net_samples(4)).predictions.dtype.name == "float32"


def test_a_step_is_that_of_torch_autocast(tmp_path):
    """One step of gradient descent, against the same by hand."""
    built = net_trainer(
        tmp_path, MixedPrecision("bf16"), optim="sgd", max_steps=1, lr_scheduler_type="constant", max_grad_norm=0
    )
    batches = []
    built.on("on_batch", lambda batch: batches.append((batch, torch.get_rng_state())))
    by_hand = Net()
    built.train()
    [(batch, randomness)] = batches
    torch.set_rng_state(randomness)
    by_hand.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = by_hand(**batch)["loss"]
    loss.backward()
    torch.optim.SGD(by_hand.parameters(), lr=0.05).step()
    assert same_weights(weights(built.model), weights(by_hand))


def test_the_forward_is_put_back(tmp_path):
    model = Net()
    built = net_trainer(tmp_path, MixedPrecision("bf16"), model=model)
    signatures = []
    built.on("on_step_begin", lambda model: signatures.append(str(inspect.signature(model.forward))), once=1)
    built.train()
    assert "forward" not in vars(model)
    assert signatures == [str(inspect.signature(Net().forward))], "what reads the signature finds the model's own"


def test_a_forward_that_somebody_had_replaced_is_put_back(tmp_path):
    model = Net()
    own = model.forward
    model.forward = lambda x, labels=None: own(x, labels)
    replaced = model.forward
    net_trainer(tmp_path, MixedPrecision("bf16"), model=model).train()
    assert vars(model)["forward"] is replaced


def test_fp16_on_a_cpu_is_refused_with_the_remedy(tmp_path):
    built = net_trainer(tmp_path, MixedPrecision("fp16"))
    with pytest.raises(ArgumentError, match=r"fp16 needs a CUDA device.*on cpu.*Use bf16"):
        built.train()
    assert "forward" not in vars(built.model)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ArgumentError, match=r"'fp8'.*'bf16' or 'fp16'"):
        MixedPrecision("fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, None), ({"bf16": True}, MixedPrecision("bf16")), ({"fp16": True}, MixedPrecision("fp16"))],
)
def test_arguments_build_the_callback(tmp_path, arguments, expected):
    assert net_trainer(tmp_path, **arguments).callbacks.get("MixedPrecision") == expected


class Outputs(NamedTuple):
    logits: torch.Tensor
    note: str


def test_outputs_of_any_shape_come_back_in_float32():
    half, whole = torch.ones(2, dtype=torch.bfloat16), torch.arange(2)
    given = {"a": [half, (half.to(torch.float16), whole)], "b": Outputs(half, "kept"), "c": None}
    got = to_float32(given)
    assert got["a"][0].dtype == got["a"][1][0].dtype == got["b"].logits.dtype == torch.float32
    assert got["a"][1][1].dtype == torch.int64
    assert (got["b"].note, got["c"]) == ("kept", None)
