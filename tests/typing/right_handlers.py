"""Handlers that mypy and pyright accept: any subset of the parameters, in any order, or `**kwargs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainbus import Callback, Run, Stage, TrainerControl, TrainerState, TrainingArguments, order
from trainbus.events import Event, TypedCallback


@dataclass
class Subsets(Callback):
    """Any subset, in any order, with annotations as precise as the author likes."""

    stage = Stage.MEASURE
    events = (Event("on_spike", "The loss is much larger than usual.", ("loss",)),)

    def on_train_begin(self) -> None:
        """Names nothing."""

    def on_step_end(self, loss: torch.Tensor, state: TrainerState, control: TrainerControl) -> None:
        if float(loss) > 10.0:
            control.request("training_stop", f"the loss is {float(loss):.3g} at step {state.global_step}")

    @order(Stage.REPORT)
    def on_log(self, logs: Mapping[str, Any]) -> None:
        print(logs)

    def on_evaluate(self, metrics: dict[str, Any] | None, model: nn.Module) -> None:
        print(metrics, model)

    def on_setup(self, run: Run, own: int = 3) -> None:
        run.announce("on_spike", loss=float(own))

    def on_pre_optimizer_step(self, grad_norm: torch.Tensor | float | None) -> None:
        print("unknown until the step" if grad_norm is None else float(grad_norm))

    def on_optimizer_step(self, learning_rate: object, *, grad_norm: Any) -> None:
        print(learning_rate, grad_norm)

    def on_save(self, checkpoint, state):  # type: ignore[no-untyped-def]
        print(checkpoint.path, state)


class Transformers(Callback):
    """In the style of transformers."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and args.logging_steps and state.global_step:
            control.should_save = True


class Everything(Callback):
    """All parameters by name."""

    def on_step_end(self, **kwargs: Any) -> None:
        print(sorted(kwargs))


class Checked(TypedCallback):
    """Keyword-only parameters and `**kwargs`: checked against the catalogue."""

    def on_log(self, *, state: TrainerState, logs: dict[str, Any], **kwargs: Any) -> None:
        print(state.global_step, logs)

    def on_step_end(self, *, loss: torch.Tensor, control: TrainerControl, **kwargs: Any) -> None:
        control.should_training_stop = float(loss) < 0.1

    def on_epoch_end(self, **kwargs: Any) -> None:
        """Names nothing."""
