"""The arithmetic of a step: accumulation, clipping, skipping, scaling, and the seams that change them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.data import points
from support.models import Regression
from support.outcomes import history, same_weights, weights
from support.trainers import regression_trainer
from trainbus.engine.seams import Seams, clip_gradients
from trainbus.events import Callback, Stage, SubscriptionError
from trainbus.events.stages import order


class Filling(Callback):
    """Fills seams."""

    stage = Stage.PREPARE

    def __init__(self, id: str = "Filling", **fillings: Any) -> None:
        self.id, self.fillings = id, fillings

    def on_setup(self, run: Any) -> None:
        run.seams.fill(self.id, **self.fillings)


class Each(Callback):
    """Does something at each announcement of an event."""

    def __init__(self, event: str, action: Callable[[Any], None]) -> None:
        self.action = action
        setattr(self, event, self._act)

    def _act(self, run: Any) -> None:
        self.action(run)


def sgd(model: nn.Module, rate: float = 0.1) -> tuple[Any, Any]:
    return torch.optim.SGD(model.parameters(), lr=rate), None


# Accumulation.


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_accumulated_batches_make_the_step_of_one_large_batch(accumulate: int, tmp_path: Path):
    def train(size: int, batches: int) -> dict[str, torch.Tensor]:
        run = regression_trainer(
            tmp_path,
            train_dataset=points(16),
            args={
                **{"per_device_train_batch_size": size, "gradient_accumulation_steps": batches, "max_steps": 6},
                **{"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"},
            },
        )
        run.train()
        return weights(run.model)

    whole, parts = train(8, 1), train(8 // accumulate, accumulate)
    for name in whole:
        assert torch.allclose(parts[name], whole[name], rtol=0, atol=1e-6)
    assert not same_weights(whole, weights(Regression()))


def test_short_window_is_averaged_over_its_own_batches(tmp_path: Path):
    """Three batches of four in windows of two: the last window is one batch, and as large a step as a whole one."""
    model = Regression()
    by_hand = Regression()
    data = points(12)
    run = regression_trainer(
        *(tmp_path, model),
        train_dataset=data,
        args={
            **{"gradient_accumulation_steps": 2, "num_train_epochs": 1},
            **{"max_grad_norm": 0.0, "lr_scheduler_type": "constant"},
        },
        optimizers=sgd(model),
        data_collator=(collate := _Remembering()),
    )
    run.train()
    optimizer, _ = sgd(by_hand)
    for window in (collate.batches[:2], collate.batches[2:]):
        for batch in window:
            (by_hand(**batch)["loss"] / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [len(collate.batches), run.state.global_step] == [3, 2]
    for name, weight in weights(by_hand).items():
        assert torch.allclose(weights(model)[name], weight, rtol=0, atol=1e-6)


class _Remembering:
    """Collates, and keeps what it made."""

    def __init__(self) -> None:
        self.batches: list[dict[str, torch.Tensor]] = []

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        self.batches.append({key: torch.stack([row[key] for row in rows]) for key in rows[0]})
        return self.batches[-1]


def test_handlers_may_replace_the_batch_and_the_loss(tmp_path: Path):
    def zeros(run: Any) -> None:
        run.batch = {"x": torch.zeros_like(run.batch["x"]), "labels": torch.ones_like(run.batch["labels"])}

    def doubled(run: Any) -> None:
        run.loss = 2 * run.loss

    norms: list[list[float]] = []
    for also in ([], [Each("on_loss", doubled)]):
        model = Regression()
        nn.init.zeros_(model.linear.bias)
        run = regression_trainer(
            *(tmp_path, model),
            args={"max_steps": 1, "logging_strategy": "steps", "logging_steps": 1},
            callbacks=[Each("on_batch", zeros), *also],
        )
        run.train()
        entry = history(run)[0]
        norms.append([entry["grad_norm"], entry["loss"]])
    assert norms[0] == [2.0, 1.0]  # (0 - 1)^2 has slope -2 in the bias, and none in the weights of inputs of zero
    assert norms[1][0] == 4.0


# Skipping an update.


def skip_in(*steps: int) -> Callable[[Any], None]:
    def decide(run: Any) -> None:
        if run.state.global_step + 1 in steps:
            run.control.request("skip_update", "the test wants it")

    return decide


@pytest.mark.parametrize("event", ["on_step_begin", "on_loss", "on_gradients", "on_pre_optimizer_step"])
def test_skipped_update_leaves_weights_optimizer_and_schedule_unchanged(event: str, tmp_path: Path):
    seen: list[tuple[dict[str, torch.Tensor], float, int]] = []

    def look(run: Any) -> None:
        steps = next(iter(run.optimizer.state.values()))["step"].item() if run.optimizer.state else 0
        seen.append((weights(run.model), run.optimizer.param_groups[0]["lr"], int(steps)))

    heard: list[int] = []
    run = regression_trainer(
        tmp_path,
        args={"max_steps": 4},
        callbacks=[
            Each(event, skip_in(2)),
            Each("on_step_end", look),
            Each("on_optimizer_step", lambda run: heard.append(run.state.global_step + 1)),
        ],
    )
    run.train()
    (first, rate_1, _), (second, rate_2, updates), (third, rate_3, _) = seen[:3]
    assert same_weights(first, second)
    assert not same_weights(second, third)
    assert (rate_1, rate_2) == (rate_1, rate_1)
    assert rate_3 < rate_2
    assert updates == 1
    assert heard == [1, 3, 4]  # nothing was stepped, so nobody is told of a step
    assert (run.state.global_step, run.state.steps_skipped) == (4, 1)
    assert [entry.action for entry in run.control.ledger.of("skip_update")] == ["request", "take"]


def test_the_gradients_of_a_skipped_update_are_dropped(tmp_path: Path):
    alive: list[bool] = []
    run = regression_trainer(
        tmp_path,
        args={"max_steps": 2},
        callbacks=[
            Each("on_gradients", skip_in(1)),
            Each("on_step_end", lambda run: alive.append(any(w.grad is not None for w in run.model.parameters()))),
        ],
    )
    run.train()
    assert alive == [False, False]


def test_vetoed_skip_has_no_effect(tmp_path: Path):
    def forbid(run: Any) -> None:
        run.control.veto("skip_update", "no")

    run = regression_trainer(
        *(tmp_path,),
        args={"max_steps": 2},
        callbacks=[Each("on_gradients", skip_in(1)), Each("on_pre_optimizer_step", forbid)],
    )
    run.train()
    assert run.state.steps_skipped == 0


def test_a_skip_holds_for_one_step(tmp_path: Path):
    run = regression_trainer(tmp_path, args={"max_steps": 6}, callbacks=[Each("on_loss", skip_in(2, 3, 5))])
    run.train()
    assert run.state.steps_skipped == 3


# The scaler.


def overflow_in(step: int) -> Callable[[Any], None]:
    def break_loss(run: Any) -> None:
        if run.state.global_step + 1 == step:
            run.loss = run.loss * float("inf")

    return break_loss


def test_a_scaler_scales_the_loss_and_unscales_the_gradients(tmp_path: Path):
    def train(**options: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
        run = regression_trainer(tmp_path, args={"logging_strategy": "steps", "logging_steps": 1}, **options)
        run.train()
        return weights(run.model), history(run)

    scaled: list[float] = []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain, scaling = train(), train(callbacks=[Filling(scaler=scaler)])
    assert same_weights(plain[0], scaling[0])  # a power of two scales without rounding
    assert plain[1] == scaling[1]
    run = regression_trainer(
        *(tmp_path,),
        args={"max_steps": 1, "gradient_accumulation_steps": 2},
        callbacks=[
            Filling(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)),
            Each("on_substep_end", lambda run: scaled.append(run.model.linear.bias.grad.item())),
            Each("on_gradients", lambda run: scaled.append(run.model.linear.bias.grad.item())),
        ],
    )
    run.train()
    assert abs(scaled[0]) > 100 * abs(scaled[1])


def test_an_overflow_skips_the_update_and_the_schedule_waits(tmp_path: Path):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen: list[tuple[dict[str, torch.Tensor], float, float]] = []

    def look(run: Any) -> None:
        seen.append((weights(run.model), run.optimizer.param_groups[0]["lr"], scaler.get_scale()))

    heard: list[int] = []
    run = regression_trainer(
        tmp_path,
        args={"max_steps": 3},
        callbacks=[
            Filling(scaler=scaler),
            Each("on_loss", overflow_in(2)),
            Each("on_step_end", look),
            Each("on_optimizer_step", lambda run: heard.append(run.state.global_step + 1)),
        ],
    )
    run.train()
    (first, rate_1, scale_1), (second, rate_2, scale_2), (third, _, _) = seen
    assert same_weights(first, second)
    assert not same_weights(second, third)
    assert rate_1 == rate_2
    assert scale_2 == scale_1 / 2
    assert heard == [1, 3]
    assert run.state.steps_skipped == 1
    assert all(torch.isfinite(weight).all() for weight in third.values())


# Clipping, and the other seams.


def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_logged(tmp_path: Path):
    def train(limit: float) -> tuple[list[float], list[float]]:
        norms: list[float] = []

        def measure(run: Any) -> None:
            norms.append(nn.utils.get_total_norm([w.grad for w in run.model.parameters()]).item())

        run = regression_trainer(
            tmp_path,
            args={"max_steps": 3, "max_grad_norm": limit, "logging_strategy": "steps", "logging_steps": 1},
            callbacks=[Each("on_gradients", measure), Each("on_pre_optimizer_step", measure)],
        )
        run.train()
        return norms, [entry["grad_norm"] for entry in history(run) if "grad_norm" in entry]

    norms, logged = train(0.25)
    assert logged == pytest.approx(norms[::2])
    assert norms[1::2] == pytest.approx([0.25] * 3, rel=1e-4)
    norms, logged = train(0.0)
    assert norms[::2] == norms[1::2]  # nothing is clipped, and the norm is told all the same
    assert logged == pytest.approx(norms[::2])


@pytest.mark.parametrize("limit", [0.0, 0.1])
def test_sparse_gradients_are_measured_and_clipped_as_dense_ones(limit: float):
    def clipped(sparse: bool) -> tuple[float, list[list[float]]]:
        torch.manual_seed(0)
        embedding, head = nn.EmbeddingBag(5, 3, sparse=sparse), nn.Linear(3, 2)
        head(embedding(torch.tensor([[1, 2, 1], [1, 4, 4]]))).square().sum().backward()
        parameters = [*embedding.parameters(), *head.parameters()]
        norm = clip_gradients(torch.optim.SGD(parameters), parameters, limit)
        gradient = embedding.weight.grad
        assert gradient is not None
        return norm.item(), (gradient.to_dense() if sparse else gradient).tolist()

    sparse, dense = clipped(True), clipped(False)
    assert sparse[0] == pytest.approx(dense[0])
    assert torch.tensor(sparse[1]) == pytest.approx(torch.tensor(dense[1]))


def test_the_clip_seam_replaces_the_clipping(tmp_path: Path):
    calls: list[tuple[Any, int, float]] = []

    def clip(optimizer: Any, parameters: list[nn.Parameter], limit: float) -> torch.Tensor:
        calls.append((optimizer, len(parameters), limit))
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        return torch.tensor(7.0)

    run = regression_trainer(
        tmp_path,
        args={"max_steps": 2, "max_grad_norm": 0.5, "logging_strategy": "steps", "logging_steps": 1},
        callbacks=[Filling(clip=clip)],
    )
    before = weights(run.model)
    run.train()
    assert calls == [(run.optimizer, 2, 0.5)] * 2
    assert same_weights(weights(run.model), before)
    assert [entry["grad_norm"] for entry in history(run) if "grad_norm" in entry] == [7.0, 7.0]


def test_other_seams_are_called_at_their_place(tmp_path: Path):
    said: list[str] = []

    @contextmanager
    def synchronise(model: nn.Module, last: bool) -> Any:
        said.append(f"synchronise {last}")
        yield
        said.append("synchronised")

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, **inputs: Any) -> Any:
            said.append("forward")
            return self.inner(**inputs)

    def named(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def seam(*args: Any) -> Any:
            said.append(name)
            return make(*args)

        return seam

    fillings = {
        "prepare_model": named("prepare_model", lambda model: model),
        "make_optimizer": named("make_optimizer", lambda make: make()),
        "make_schedule": named("make_schedule", lambda make: make()),
        "backward": named("backward", lambda loss: loss.backward()),
        "step": named("step", lambda optimizer: optimizer.step() or True),
        "wrap_model": named("wrap_model", lambda model, optimizer: Wrapped(model)),
        "zero_grad": named("zero_grad", lambda parameters: [p.grad.zero_() for p in parameters if p.grad is not None]),
        "synchronise": synchronise,
    }
    run = regression_trainer(
        *(tmp_path,),
        args={"max_steps": 1, "gradient_accumulation_steps": 2},
        callbacks=[Filling(**fillings)],
    )
    run.train()
    assert said == [
        *("prepare_model", "make_optimizer", "wrap_model", "make_schedule", "zero_grad"),
        *("synchronise False", "forward", "backward", "synchronised"),
        *("synchronise True", "forward", "backward", "synchronised"),
        *("step", "zero_grad"),
    ]
    assert isinstance(run.model, Regression)
    assert run.model_wrapped is run.model  # the wrapper is of the training alone


def test_seam_filled_twice_raises_with_both_names(tmp_path: Path):
    run = regression_trainer(tmp_path, callbacks=[Filling("Mine", scaler=None), Filling("Yours", scaler=None)])
    with pytest.raises(SubscriptionError, match="Yours and Mine both fill the seam scaler"):
        run.train()


def test_unknown_seam_raises_with_the_known_ones():
    with pytest.raises(SubscriptionError, match=r"Mine fills the unknown seam 'clipping'.*clip, step"):
        Seams().fill("Mine", clipping=None)


def test_seams_record_the_callback_that_filled_them():
    seams = Seams()
    assert seams.filled_by("clip") == ""
    seams.fill("Mine", clip=lambda *args: None)
    assert seams.filled_by("clip") == "Mine"


def test_seams_last_for_one_session(tmp_path: Path):
    run = regression_trainer(tmp_path, args={"max_steps": 1}, callbacks=[Filling(scaler=torch.amp.GradScaler("cpu"))])
    run.train()
    run.train()  # the second time they are filled anew, and not refused as filled twice


# What is kept alive.


class Large(Regression):
    """Keeps a weak reference to its last outputs."""

    made: weakref.ref[torch.Tensor]

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        outputs = super().forward(x, labels)
        self.made = weakref.ref(outputs["logits"])
        return outputs


def test_outputs_are_kept_only_if_a_handler_names_them(tmp_path: Path):
    class Asking(Callback):
        stage = Stage.REPORT

        def on_step_end(self, outputs: Any) -> None:
            seen.append(outputs is not None)

    class NotAsking(Callback):
        @order(Stage.REPORT)
        def on_step_end(self, run: Any) -> None:
            seen.append(run.model.made() is not None)

    for callback, kept in ((Asking(), True), (NotAsking(), False)):
        seen: list[bool] = []
        regression_trainer(tmp_path, Large(), args={"max_steps": 2}, callbacks=[callback]).train()
        assert seen == [kept, kept]


def test_outputs_are_available_in_on_loss(tmp_path: Path):
    seen: list[bool] = []
    looking = Each("on_loss", lambda run: seen.append(run.outputs["logits"].grad_fn is not None))
    regression_trainer(tmp_path, args={"max_steps": 2}, callbacks=[looking]).train()
    assert seen == [True, True]


def test_step_values_are_released_at_the_end_of_the_run(tmp_path: Path):
    run = regression_trainer(tmp_path, args={"max_steps": 2}, callbacks=[Each("on_step_end", lambda run: None)])
    run.train()
    assert (run.run.batch, run.run.outputs, run.run.mode) == (None, None, "")


# Losses that are not numbers.


def nan_in(*steps: int) -> Callable[[Any], None]:
    def break_batch(run: Any) -> None:
        if run.state.global_step + 1 in steps:
            run.batch = {**run.batch, "labels": run.batch["labels"] * float("nan")}
            run.control.request("skip_update", "so that the weights stay numbers")

    return break_batch


def test_non_finite_loss_is_logged_unless_it_is_filtered(tmp_path: Path):
    def train(filtered: bool) -> list[float]:
        args = {"max_steps": 4, "logging_strategy": "steps", "logging_steps": 2, "logging_nan_inf_filter": filtered}
        run = regression_trainer(tmp_path, args=args, callbacks=[Each("on_batch", nan_in(2))])
        run.train()
        return [entry["loss"] for entry in history(run) if "loss" in entry]

    shown, hidden = train(False), train(True)
    assert [loss != loss for loss in shown] == [True, False]
    assert shown[1] == hidden[1]
    assert hidden[0] == hidden[0] > 0
