"""A loss module is part of what is trained: in averages, best models, new attempts and trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.data import points
from support.trainers import regression_trainer
from trainbus import EMA, Callback


class Scaled(nn.Module):
    """A loss with a trained scale and a count of its calls in training."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return (self.scale * outputs.squeeze(-1) - labels).pow(2).mean()


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def run_of(folder: Path, *callbacks: Any, criterion: Any = None, **options: Any) -> Any:
    args = {"max_steps": 6, **options.pop("args", {})}
    criterion = criterion or Scaled()
    options.setdefault("eval_dataset", points(8, seed=1))
    if "model_init" not in options:
        options.setdefault("model", Line())
    return regression_trainer(folder, args=args, criterion=criterion, callbacks=list(callbacks), **options)


class Scales(Callback):
    """Notes the scale after each step, and in each evaluation."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.trained, self.evaluated = module, [], []

    def on_optimizer_step(self) -> None:
        self.trained.append(self.module.scale.item())

    def on_prediction_step(self) -> None:
        self.evaluated.append(self.module.scale.item())


def test_an_average_covers_the_parameters_of_a_loss_module(tmp_path: Path) -> None:
    criterion = Scaled()
    scales = Scales(criterion)
    args = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 4}
    run = run_of(tmp_path, EMA(0.5), scales, criterion=criterion, args=args)
    run.train()
    average = expected = 1.0
    for step, value in enumerate(scales.trained, 1):
        average = 0.5 * average + 0.5 * value
        expected = average if step == 3 else expected
    assert scales.evaluated[0] == pytest.approx(expected)
    assert criterion.scale.item() == pytest.approx(average)
    again = run_of(tmp_path, EMA(0.5), criterion=(other := Scaled()), args=args)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert other.scale.equal(criterion.scale)


def test_a_checkpoint_of_an_average_without_the_loss_module_resumes(tmp_path: Path) -> None:
    args = {"save_strategy": "steps", "save_steps": 4}

    class Former(EMA):
        def state_dict(self) -> dict[str, Any]:
            return {
                part: {name: value for name, value in values.items() if "loss" not in name}
                for part, values in super().state_dict().items()
            }

    Former.__name__ = "EMA"
    whole = run_of(tmp_path, Former(0.5), args=args)
    whole.train()
    again = run_of(tmp_path, EMA(0.5), args=args)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.state.global_step == 6


def test_the_best_model_comes_with_its_loss_module(tmp_path: Path) -> None:
    criterion = Scaled()
    values = iter([3.0, 1.0, 2.0])
    args = {
        **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2},
        **{"load_best_model_at_end": True, "metric_for_best_model": "chosen"},
        **{"greater_is_better": False},
    }
    scales = Scales(criterion)
    run = run_of(tmp_path, scales, criterion=criterion, args=args, compute_metrics=lambda _: {"chosen": next(values)})
    run.train()
    assert run.state.best_global_step == 4
    assert criterion.scale.item() == scales.trained[3] != scales.trained[5]
    assert criterion.calls.item() == 4


def test_a_smaller_batch_starts_with_the_first_loss_module(tmp_path: Path) -> None:
    def trained(size: int, fails: bool) -> Scaled:
        criterion = Scaled()

        class Fails(Callback):
            def on_step_end(self, run: Any) -> None:
                if fails and run.state.global_step == 2 and run.train_batch_size > size:
                    raise RuntimeError("CUDA out of memory")

        args = {"per_device_train_batch_size": 4 if fails else size, "auto_find_batch_size": fails}
        run_of(tmp_path, Fails(), criterion=criterion, args=args).train()
        return criterion

    found, expected = trained(3, fails=True), trained(3, fails=False)
    assert found.scale.equal(expected.scale)
    assert found.calls.equal(expected.calls)


def test_trials_do_not_share_a_loss_module(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    criterion, begins = Scaled(), []

    class Begins(Callback):
        def on_train_begin(self, run: Any) -> None:
            module = next(each.module for each in run.bus.subscribers.values() if hasattr(each, "module"))
            begins.append((module.scale.item(), module.calls.item()))

    run = run_of(
        tmp_path, Begins(), criterion=criterion, model_init=Line, args={"eval_strategy": "steps", "eval_steps": 3}
    )
    run.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.01, 0.1)},
        n_trials=2,
        direction="minimize",
        backend="optuna",
    )
    assert begins == [(1.0, 0.0)] * 2
    assert (criterion.scale.item(), criterion.calls.item()) == (1.0, 0.0)
