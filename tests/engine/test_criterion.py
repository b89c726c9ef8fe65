"""A criterion: its loss is a mean over the batch, and its parameters and buffers are trained, saved and resumed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.trainers import regression_trainer
from trainbus.events.errors import ArgumentError

STEPS, BATCH = 4, 4


def rows(count: int = STEPS * BATCH, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return [{"x": row, "labels": torch.tensor(int(row.sum() > 0))} for row in x]


class Plain(nn.Module):
    """Logits of two classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class AnyKeyword(Plain):
    """Accepts every keyword, as the models of transformers do."""

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.linear(x)


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides the signature."""

    def call(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return call


def transparent(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(opaque(function))


class Decorated(Plain):
    @transparent
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def compiled() -> nn.Module:
    model: Any = torch.compile(Plain(), backend="eager")
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": Plain,
    "any keyword": AnyKeyword,
    "decorated": Decorated,
    "compiled": compiled,
}


def raw_loop(accumulate: int, criterion: Callable[..., Any] = nn.functional.cross_entropy) -> list[torch.Tensor]:
    """The weights after one epoch of plain SGD, written out."""
    model, data = Plain(), rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [data[start : start + BATCH] for start in range(0, len(data), BATCH)]
    for start in range(0, len(batches), accumulate):
        window = batches[start : start + accumulate]
        for batch in window:
            x, labels = (torch.stack([row[key] for row in batch]) for key in ("x", "labels"))
            (criterion(model(x), labels) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [weight.detach() for weight in model.parameters()]


SGD = {
    "per_device_train_batch_size": BATCH,
    "num_train_epochs": 1,
    "optim": "sgd",
    "learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "train_sampling_strategy": "sequential",
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_a_criterion_is_a_mean_over_its_batch_for_every_model_signature(kind: str, accumulate: int, tmp_path: Path):
    run = regression_trainer(
        tmp_path,
        MODELS[kind](),
        train_dataset=rows(),
        criterion=nn.functional.cross_entropy,
        args={**SGD, "gradient_accumulation_steps": accumulate, "remove_unused_columns": False},
    )
    run.train()
    for ours, theirs in zip(run.model.parameters(), raw_loop(accumulate), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", MODELS)
def test_the_logged_loss_of_a_criterion_does_not_depend_on_the_accumulation(kind: str, tmp_path: Path):
    args = {**SGD, "learning_rate": 0.0, "remove_unused_columns": False}
    losses = [
        regression_trainer(
            tmp_path,
            MODELS[kind](),
            train_dataset=rows(),
            criterion=nn.functional.cross_entropy,
            args={**args, "gradient_accumulation_steps": accumulate},
        )
        .train()
        .training_loss
        for accumulate in (1, 4)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_criterion_leaves_the_item_count_out_of_the_batch(tmp_path: Path):
    seen: list[Any] = []

    class Noting(AnyKeyword):
        def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
            seen.append(options)
            return self.linear(x)

    run = regression_trainer(
        tmp_path,
        Noting(),
        train_dataset=rows(),
        eval_dataset=rows(),
        criterion=nn.functional.cross_entropy,
        args={**SGD, "gradient_accumulation_steps": 2},
    )
    run.train()
    run.evaluate()
    assert seen
    assert not any(seen)


def test_a_loss_function_without_a_count_is_divided_by_the_batches_of_its_step(tmp_path: Path):
    """The labels have another name, so that nothing counts them; the function returns a mean."""

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        assert num_items_in_batch is None
        return outputs.pow(2).mean()

    run = regression_trainer(
        tmp_path,
        Plain(),
        train_dataset=[{"x": row["x"]} for row in rows()],
        compute_loss_func=loss,
        args={**SGD, "gradient_accumulation_steps": 2},
    )
    run.train()
    for ours, theirs in zip(run.model.parameters(), raw_loop(2, lambda outputs, _: outputs.pow(2).mean()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("given", ["criterion", "compute_loss_func"])
def test_label_smoothing_with_another_loss_is_refused(given: str, tmp_path: Path):
    with pytest.raises(ArgumentError, match=f"`{given}` replaces it"):
        regression_trainer(
            tmp_path, Plain(), args={"label_smoothing_factor": 0.1}, **{given: nn.functional.cross_entropy}
        )


class Stateful(nn.Module):
    """A loss with a trained temperature, a running mean and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(2))
        self.modes: list[bool] = []

    def forward(self, logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        self.modes.append(self.training)
        if self.training:
            self.mean: torch.Tensor = 0.9 * self.mean + 0.1 * logits.detach().mean(0)
        return nn.functional.cross_entropy(self.dropout(logits - self.mean) * self.temperature, labels)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        return self(logits, labels)


ADAMW = {"per_device_train_batch_size": BATCH, "max_steps": 8, "learning_rate": 0.05, "lr_scheduler_type": "constant"}
GIVEN: dict[str, Callable[[Stateful], dict[str, Any]]] = {
    "criterion": lambda module: {"criterion": module},
    "loss function": lambda module: {"compute_loss_func": module},
    "method": lambda module: {"compute_loss_func": module.loss},
    "partial": lambda module: {"criterion": functools.partial(module)},
}


def combined(given: Callable[[Stateful], dict[str, Any]], folder: Path, **options: Any) -> tuple[Any, Stateful]:
    module = Stateful()
    args = {**ADAMW, **options.pop("args", {})}
    return regression_trainer(folder, Plain(), train_dataset=rows(), **given(module), args=args, **options), module


class Whole(nn.Module):
    """The model and the loss as one module that returns its loss: what the separate ones must equal."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.criterion = Plain(), Stateful()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(x)
        return {"loss": self.criterion(logits, labels), "logits": logits}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_a_loss_module_is_trained_as_if_it_were_in_the_model(given: str, clip: float, tmp_path: Path):
    args = {"max_grad_norm": clip, "weight_decay": 0.1}
    run, module = combined(GIVEN[given], tmp_path, args=args)
    run.train()
    whole = regression_trainer(tmp_path, Whole(), train_dataset=rows(), args={**ADAMW, **args})
    whole.train()
    torch.testing.assert_close(module.state_dict(), whole.model.criterion.state_dict(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run.model.state_dict(), whole.model.model.state_dict(), rtol=1e-5, atol=1e-6)
    assert module.temperature.item() != 1.5


@pytest.mark.parametrize("given", GIVEN)
def test_a_run_with_a_loss_module_resumes_exactly(given: str, tmp_path: Path):
    run, module = combined(GIVEN[given], tmp_path, args={"save_strategy": "steps", "save_steps": 4})
    run.train()
    again, restored = combined(GIVEN[given], tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    for ours, theirs in ((restored, module), (again.model, run.model)):
        assert all(torch.equal(ours.state_dict()[name], value) for name, value in theirs.state_dict().items())


def test_parameters_of_a_loss_module_in_the_optimizer_of_the_user_are_cleared_and_not_added(tmp_path: Path):
    module, model = Stateful(), Plain()
    optimizer = torch.optim.SGD([*model.parameters(), *module.parameters()], lr=0.1)
    run = regression_trainer(
        tmp_path, model, train_dataset=rows(), criterion=module, optimizers=(optimizer, None), args={"max_steps": 3}
    )
    run.train()
    assert len(optimizer.param_groups) == 1
    assert module.temperature.grad is None


def test_parameters_that_only_the_optimizer_of_the_user_holds_are_cleared(tmp_path: Path):
    stray, model = nn.Parameter(torch.ones(())), Plain()
    optimizer = torch.optim.SGD([*model.parameters(), stray], lr=0.1)
    seen: list[Any] = []

    def criterion(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(stray.grad)
        return nn.functional.cross_entropy(logits * stray, labels)

    regression_trainer(
        tmp_path, model, train_dataset=rows(), criterion=criterion, optimizers=(optimizer, None), args={"max_steps": 3}
    ).train()
    assert seen == [None] * 3


def test_a_schedule_of_the_user_without_the_loss_module_is_refused(tmp_path: Path):
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    run = regression_trainer(
        tmp_path, model, train_dataset=rows(), criterion=Stateful(), optimizers=(optimizer, schedule)
    )
    with pytest.raises(ArgumentError, match="The loss module Stateful has parameters"):
        run.train()


def test_a_loss_module_is_in_eval_mode_in_evaluations_only(tmp_path: Path):
    run, module = combined(
        GIVEN["criterion"],
        tmp_path,
        eval_dataset=rows(4),
        args={"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, "per_device_eval_batch_size": 4},
    )
    run.train()
    run.evaluate()
    run.predict(rows(4))
    assert module.modes == [True, False, True, False, False, False]


def test_buffers_of_a_loss_are_moved_to_the_device_of_the_run(tmp_path: Path):
    criterion = nn.CrossEntropyLoss(weight=torch.ones(2, dtype=torch.float32))
    run = regression_trainer(tmp_path, Plain(), train_dataset=rows(), criterion=criterion)
    moved: list[Any] = []
    criterion.to = lambda device: moved.append(device)  # type: ignore[method-assign, assignment]
    run.train()
    assert moved == [run.args.device]


def test_a_loss_without_state_needs_no_callback(tmp_path: Path):
    run = regression_trainer(tmp_path, Plain(), train_dataset=rows(), criterion=nn.CrossEntropyLoss())
    assert not any("LossModule" in name for name in run.callbacks)


def test_a_frozen_teacher_inside_a_loss_module_keeps_its_mode(tmp_path: Path):
    class Distilling(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = nn.Dropout(0.5).eval()

        def forward(self, logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
            assert not self.teacher.training
            return super().forward(logits, labels)

    module = Distilling()
    regression_trainer(
        tmp_path,
        Plain(),
        train_dataset=rows(),
        eval_dataset=rows(4),
        criterion=module,
        args={"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1},
    ).train()
    assert True in module.modes
    assert False in module.modes
