"""Parameters that a handler adds to the model during a training are clipped and cleared, as in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import trainbus
from support.data import points


class Growing(nn.Module):
    """A model whose head can get an additional part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        self.extra: nn.Module | None = None

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        hidden = self.linear(x)
        out = self.head(hidden)
        if self.extra is not None:
            out = out + self.extra(hidden)
        return {"loss": (out.squeeze(1) - labels).square().mean()}

    def grow(self, way: str) -> list[nn.Parameter]:
        torch.manual_seed(1)
        if way == "module":
            self.extra = nn.Linear(4, 1)
            return [*self.extra.parameters()]
        if way == "parameter":
            self.head.weight = nn.Parameter(torch.ones(1, 4))
            return [self.head.weight]
        self.head = nn.Linear(4, 1)
        return [*self.head.parameters()]


class Clips(trainbus.Trainer):
    """A trainer with an override that only calls the default."""

    def _clip_grad_norm(self, model: Any) -> Any:
        return super()._clip_grad_norm(model)


class Measures(trainbus.Trainer):
    """A trainer with another override that only calls the default."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        return super()._get_grad_norm(model, grad_norm)


def trained(
    library: Any, folder: Path, way: str, known: bool, kind: Any = None, callbacks: Sequence[Any] = ()
) -> tuple[list[torch.Tensor], list[float]]:
    """Train 6 steps. At step 2, a handler adds parameters to the model and, if `known`, to the optimizer."""

    class Grow(library.TrainerCallback):  # type: ignore[name-defined,misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **values: Any) -> None:
            if state.global_step == 2:
                added = values["model"].grow(way)
                optimizer = values["optimizer"]
                if known:
                    optimizer.param_groups[0]["params"].extend(added)

    args = library.TrainingArguments(
        str(folder), max_steps=6, use_cpu=True, report_to="none", save_strategy="no", logging_steps=1,
        learning_rate=0.05, max_grad_norm=0.5, disable_tqdm=True, per_device_train_batch_size=4,
    )  # fmt: skip
    kind = kind or library.Trainer
    trainer = kind(Growing(), args, train_dataset=points(24), callbacks=[Grow(), *callbacks])
    trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    return [each.detach().clone() for each in trainer.model.parameters()], norms


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("way", ["module", "parameter", "replaced module"])
def test_the_weights_equal_those_of_transformers(way: str, known: bool, tmp_path: Path) -> None:
    ours, our_norms = trained(trainbus, tmp_path / "ours", way, known)
    theirs, their_norms = trained(transformers, tmp_path / "theirs", way, known)
    assert our_norms == their_norms
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.equal(other)


@pytest.mark.parametrize("kind", [Clips, Measures])
def test_a_trainer_that_overrides_the_clipping_follows_new_parameters(kind: Any, tmp_path: Path) -> None:
    ours, our_norms = trained(trainbus, tmp_path / "ours", "module", known=True, kind=kind)
    theirs, their_norms = trained(transformers, tmp_path / "theirs", "module", known=True)
    assert our_norms == their_norms
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.equal(other)


class Remaining(trainbus.Callback):
    """Counts the gradients that are left when a step begins."""

    left = 0

    def on_step_begin(self, model: nn.Module) -> None:
        self.left += sum(weight.grad is not None for weight in model.parameters())


def test_half_weights_clear_the_gradients_of_new_parameters(tmp_path: Path) -> None:
    remaining = Remaining()
    trained(trainbus, tmp_path, "module", known=True, callbacks=[trainbus.HalfWeights("bf16"), remaining])
    assert remaining.left == 0


def test_no_hook_stays_after_the_training(tmp_path: Path) -> None:
    module = torch.nn.modules.module
    before = len(module._global_module_registration_hooks), len(module._global_parameter_registration_hooks)
    trained(trainbus, tmp_path, "module", known=True)
    assert before == (len(module._global_module_registration_hooks), len(module._global_parameter_registration_hooks))
