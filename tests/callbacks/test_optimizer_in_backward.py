"""Updates during backward: the weights, logs and checkpoints of ordinary updates, with fewer gradients in memory."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.callbacks import Boom, Poison, stop_at
from support.data import net_samples
from support.models import Block, Net
from support.outcomes import same_weights, timeless, weights
from support.trainers import net_trainer
from trainbus import (
    EMA,
    SWA,
    Adafactor,
    Checkpoint,
    ClipByValue,
    Compile,
    Evaluate,
    Freeze,
    GradientCheckpointing,
    Log,
    MixedPrecision,
    NaNGuard,
    OptimizerInBackward,
    SaveOnException,
    WatchModules,
    at,
    every,
)
from trainbus.callbacks.optimizer import optimizer_in_backward
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.events import ArgumentError
from trainbus.events.errors import HandlerError, ModelError, NonFiniteError

UNCLIPPED: dict[str, Any] = {"max_grad_norm": 0.0}


def ended(folder: Path, *callbacks: Any, **options: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], Any]:
    """Train. Return the weights, the logs without times, and the optimizer state."""
    callbacks = (Log(every(1)), Evaluate(every(3)), *callbacks)
    built = net_trainer(folder, *callbacks, **{**UNCLIPPED, **options})
    built.train()
    history = [timeless(entry) for entry in built.state.log_history]
    return weights(built.model), history, built.optimizer.state_dict()


def same_values(one: Any, other: Any) -> bool:
    """Return whether nested values are equal, tensors in every bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_values, one, other))
    return bool(one == other)


def is_equal(folder: Path, *callbacks: Any, **options: Any) -> bool:
    """Return whether a run ends the same with and without the callback under test."""
    plain, fused = (
        ended(folder, *more, *callbacks, **{name: make() if callable(make) else make for name, make in options.items()})
        for more in ((), (OptimizerInBackward(),))
    )
    assert len(plain[1]) == 9, "6 logs, the metrics of 2 evaluations and the summary are compared"
    return same_weights(plain[0], fused[0]) and plain[1] == fused[1] and same_values(plain[2], fused[2])


@pytest.mark.parametrize(
    "optim",
    [
        *("adamw_torch", "adamw_torch_fused", "sgd", "adafactor", "adagrad", "rmsprop"),
    ],
)
def test_optimizers_by_name_train_to_the_same_end(tmp_path: Path, optim: str) -> None:
    assert is_equal(tmp_path, optim=optim, weight_decay=0.1, lr_scheduler_type="cosine", warmup_steps=2)


OWN = {
    "ASGD": lambda weights: torch.optim.ASGD(weights, 0.05),
    "Adadelta": lambda weights: torch.optim.Adadelta(weights, 0.5),
    "Adafactor": lambda weights: torch.optim.Adafactor(weights, 0.05),
    "Adafactor of trainbus": lambda weights: Adafactor(weights, 0.05, beta1=0.9, relative_step=False),
    "Adam with foreach": lambda weights: torch.optim.Adam(weights, 0.05, foreach=True, amsgrad=True),
    "AdamW that maximizes": lambda weights: torch.optim.AdamW(weights, 0.05, maximize=True),
    "Adamax": lambda weights: torch.optim.Adamax(weights, 0.05),
    "NAdam": lambda weights: torch.optim.NAdam(weights, 0.05),
    "RAdam": lambda weights: torch.optim.RAdam(weights, 0.05),
    "Rprop": lambda weights: torch.optim.Rprop(weights, 0.05),
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("name", OWN)
def test_optimizers_of_the_user_train_to_the_same_end(tmp_path: Path, name: str) -> None:
    ends = []
    for callbacks in ((), (OptimizerInBackward(),)):
        model = Net()
        groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
        ends.append(ended(tmp_path, *callbacks, model=model, optimizers=(OWN[name](groups), None)))
    assert same_weights(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]
    assert same_values(ends[0][2], ends[1][2])


def test_a_raw_loop_trains_to_the_same_weights(tmp_path: Path) -> None:
    model, raw = Net(), Net()
    for each in (model, raw):
        for block in each.blocks:
            block.dropout.p = 0.0
    options = {"lr_scheduler_type": "constant", "train_sampling_strategy": "sequential", "optim": "adamw_torch"}
    net_trainer(tmp_path, OptimizerInBackward(), model=model, max_steps=4, **options, **UNCLIPPED).train()
    optimizer = torch.optim.AdamW(raw.parameters(), lr=0.05, weight_decay=0.0)
    rows = net_samples()
    for start in range(0, 16, 4):
        batch = {name: torch.stack([row[name] for row in rows[start : start + 4]]) for name in rows[0]}
        raw(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert same_weights(weights(model), weights(raw))


class Tied(Net):
    """A model with a weight that two modules share, and a weight without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].linear.weight = self.blocks[0].linear.weight
        self.unused = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("callbacks", "options"),
    [
        ((MixedPrecision("bf16"),), {}),
        ((GradientCheckpointing(blocks=(Block,)),), {}),
        ((Compile("eager", regions=(Block,)),), {}),
        ((EMA(0.5),), {}),
        ((Freeze("blocks.0", until=at(3)),), {}),
        ((), {"model": Tied}),
        ((), {"learning_rates": {"head": 0.01}}),
    ],
    ids=["bf16", "recomputed", "compiled", "EMA", "frozen for 3 steps", "tied weights", "rates by name"],
)
def test_features_train_to_the_same_end(tmp_path: Path, callbacks: Any, options: Any) -> None:
    assert is_equal(tmp_path, *callbacks, **options)


def test_no_two_gradients_exist_at_once(tmp_path: Path) -> None:
    """In each hook of a gradient, torch holds this gradient only. After backward it holds none."""
    model, counts, after = Net(), [], []

    def gradients() -> int:
        return sum(weight.grad is not None for weight in model.parameters())

    built = net_trainer(tmp_path, OptimizerInBackward(), model=model, **UNCLIPPED)

    def count(optimizer: Any) -> None:
        for weight in model.parameters():  # before the hooks of the callback
            weight.register_post_accumulate_grad_hook(lambda _: counts.append(gradients()))

    built.on("on_setup", count, once=1)
    built.on("on_gradients", lambda: after.append(gradients()))
    built.train()
    assert len(counts) == 6 * len(list(model.parameters()))
    assert set(counts) == {1}
    assert after == [0] * 6


@pytest.mark.parametrize("fused_first", [True, False])
def test_checkpoints_with_and_without_it_are_exchangeable(tmp_path: Path, fused_first: bool) -> None:
    unbroken = net_trainer(tmp_path / "unbroken", Checkpoint(every(3)), **UNCLIPPED)
    unbroken.train()
    first, then = [(OptimizerInBackward(),), ()][:: 1 if fused_first else -1]
    started = net_trainer(tmp_path / "run", Checkpoint(every(3)), *first, **UNCLIPPED)
    started.on("on_step_end", stop_at(3))
    started.train()
    states = [load_values(tmp_path / name / "checkpoint-3" / "optimizer.safetensors") for name in ("unbroken", "run")]
    assert same_values(*states)
    resumed = net_trainer(tmp_path / "run", Checkpoint(every(3)), *then, **UNCLIPPED)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_handlers_see_the_norm_and_no_gradient(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    built = net_trainer(tmp_path, OptimizerInBackward(), **UNCLIPPED)
    norms: list[float] = []
    built.on("on_pre_optimizer_step", lambda grad_norm: norms.append(float(grad_norm)))
    built.on("on_gradients", lambda model: None, id="reader")
    built.train()
    assert all(norm > 0 for norm in norms)
    assert len(norms) == 6
    assert "gradients are None in on_gradients. These callbacks handle this event: reader." in caplog.text

    def read(run: Any) -> None:
        run.full_gradients()

    built.on("on_gradients", read)
    with pytest.raises(HandlerError, match=r"run.full_gradients\(\): OptimizerInBackward frees each gradient"):
        built.train()


def test_backward_outside_of_a_step_does_not_update(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, OptimizerInBackward(), **UNCLIPPED)
    gradients = []

    def differentiate(model: nn.Module, state: Any) -> None:
        before = weights(model)
        model.train()
        model(torch.ones(2, 6), torch.ones(2))["loss"].backward()
        gradients.append(all(weight.grad is not None for weight in model.parameters()))
        model.zero_grad()
        assert same_weights(weights(model), before)

    built.on("on_step_end", differentiate)
    built.train()
    assert gradients == [True] * 6


def test_no_hook_is_left_after_the_run_or_an_error(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, OptimizerInBackward(), **UNCLIPPED)
    built.train()
    assert not any(weight._post_accumulate_grad_hooks for weight in built.model.parameters())

    def fail() -> None:
        raise Boom

    built.on("on_gradients", fail)
    with pytest.raises(Boom):
        built.train()
    assert not any(weight._post_accumulate_grad_hooks for weight in built.model.parameters())


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_grad_norm": 1.0}, "cannot clip to `max_grad_norm=1.0`.*Set `max_grad_norm=0`"),
        ({"gradient_accumulation_steps": 2}, "cannot accumulate gradients. Set `gradient_accumulation_steps=1`"),
        ({"gradient_accumulation_schedule": {"0": 2}}, "cannot accumulate gradients"),
        ({"auto_find_batch_size": True}, "does not work with `auto_find_batch_size`"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_it_cannot_serve_are_refused(tmp_path: Path, arguments: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        net_trainer(tmp_path, OptimizerInBackward(), **{**UNCLIPPED, **arguments}).train()


@pytest.mark.parametrize(
    "other",
    [
        ClipByValue(),
        NaNGuard("skip"),
        NaNGuard("stop"),
        SaveOnException(),
        WatchModules(),
        SWA(learning_rate=0.1),
    ],
    ids=lambda other: type(other).__name__,
)
def test_callbacks_that_need_gradients_are_refused(tmp_path: Path, other: Any) -> None:
    with pytest.raises(ArgumentError, match=f"OptimizerInBackward does not work with {type(other).__name__}: "):
        net_trainer(tmp_path, OptimizerInBackward(), other, **UNCLIPPED)


def test_a_gradient_scaler_is_refused(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, OptimizerInBackward(), **UNCLIPPED)
    scaler = torch.amp.GradScaler("cpu")
    built.on("on_setup", lambda run: run.seams.fill("test", scaler=scaler))
    with pytest.raises(ArgumentError, match="does not work with a gradient scaler"):
        built.train()


class Mixing(torch.optim.AdamW):
    """An optimizer whose step may read all gradients."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_an_unknown_optimizer_is_refused(tmp_path: Path) -> None:
    model = Net()
    optimizer = Mixing(model.parameters(), 0.05)
    built = net_trainer(tmp_path, OptimizerInBackward(), model=model, optimizers=(optimizer, None), **UNCLIPPED)
    with pytest.raises(ArgumentError, match="does not know whether Mixing updates each weight by itself"):
        built.train()


@pytest.mark.parametrize("first", ["class", "subclass"])
def test_a_subclass_with_the_same_step_is_supported(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch wraps `step` of the class of each first instance."""
    known = type("Known", (torch.optim.AdamW,), {"step": inspect.unwrap(torch.optim.AdamW.step)})
    derived = type("Derived", (known,), {})
    monkeypatch.setattr(optimizer_in_backward, "PER_WEIGHT", (known,))
    weights = [nn.Parameter(torch.zeros(1))]
    optimizers = [kind(weights) for kind in ((known, derived) if first == "class" else (derived, known))]
    assert all(map(optimizer_in_backward._updates_each_weight_alone, optimizers))
    assert not optimizer_in_backward._updates_each_weight_alone(type("Other", (Mixing, known), {})(weights))


def test_a_skipped_update_and_a_late_learning_rate_are_errors(tmp_path: Path) -> None:
    skipping = net_trainer(tmp_path, OptimizerInBackward(), **UNCLIPPED)
    skipping.on("on_pre_optimizer_step", lambda control: control.request("skip_update", "a test"), once=3)
    with pytest.raises(HandlerError, match="a handler requested `skip_update`, but the weights are already updated"):
        skipping.train()
    late = net_trainer(tmp_path, OptimizerInBackward(), **UNCLIPPED)
    late.on("on_gradients", lambda optimizer: optimizer.param_groups[0].update(lr=0.01), once=3)
    with pytest.raises(HandlerError, match="a handler changed 'lr' of the optimizer after backward"):
        late.train()
    ends = []
    for callbacks in ((), (OptimizerInBackward(),)):
        built = net_trainer(tmp_path, *callbacks, **UNCLIPPED)
        built.on("on_loss", lambda optimizer: optimizer.param_groups[0].update(lr=0.01), once=3)
        built.train()
        ends.append(weights(built.model))
    assert same_weights(*ends)


def test_a_step_pre_hook_of_the_optimizer_is_an_error(tmp_path: Path) -> None:
    def halve(optimizer: Any, args: Any, kwargs: Any) -> None:
        """Change gradients."""

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    optimizer.register_step_pre_hook(halve)
    before = weights(model)
    built = net_trainer(tmp_path, OptimizerInBackward(), model=model, optimizers=(optimizer, None), **UNCLIPPED)
    with pytest.raises(HandlerError, match=r"the step pre-hook .*halve of the optimizer would run after backward"):
        built.train()
    assert same_weights(before, weights(model))


def test_nan_guard_says_that_the_weights_were_updated(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, OptimizerInBackward(), NaNGuard(), Poison(2), **UNCLIPPED)
    with pytest.raises(NonFiniteError, match=r"in step 2\. The weights were updated with these gradients\."):
        built.train()


class Twice(Net):
    """Recomputes a shared block with nested backwards, so that its weights get two gradients."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        from torch.utils.checkpoint import checkpoint

        x.requires_grad_(True)
        for _ in range(2):
            x = checkpoint(self.blocks[0], x, use_reentrant=True)
        logits = self.head(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}  # type: ignore[arg-type]


def test_a_second_gradient_of_a_weight_is_an_error(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, OptimizerInBackward(), model=Twice(), **UNCLIPPED)
    with pytest.raises(ModelError, match=r"computed the gradient of a weight of shape \(6,.* twice in one step"):
        built.train()
