"""Handlers with a wrong annotation.

Lines marked `wrong` are errors of mypy and of pyright. Lines marked `wrong for mypy` are errors of mypy with the
plugin; pyright accepts every override there.
"""

from __future__ import annotations

from typing import Any

import torch

from trainbus import Callback, Stage, TrainerControl, TrainerState, order
from trainbus.events import EventBus, TypedCallback


class Wrong(TypedCallback):
    def on_log(self, *, logs: int, **kwargs: Any) -> None:  # wrong
        print(logs)

    def on_step_end(self, *, state: TrainerControl, loss: torch.Tensor, **kwargs: Any) -> None:  # wrong
        print(state, loss)

    def on_evaluate(self, *, state: TrainerState, metrics: list[float], **kwargs: Any) -> None:  # wrong
        print(state, metrics)


class WrongSubset(Callback):
    def on_log(self, logs: int) -> None:  # wrong for mypy
        print(logs)

    @order(Stage.REPORT)
    def on_step_end(self, state: TrainerState, loss: float) -> None:  # wrong for mypy
        print(state, loss)

    def on_save(self, state: TrainerControl, **kwargs: Any) -> None:  # wrong for mypy
        print(state)

    def on_pre_optimizer_step(self, grad_norm: torch.Tensor | float) -> None:  # wrong for mypy
        print(float(grad_norm))


def raise_a_flag(control: TrainerControl, bus: EventBus) -> None:
    control.request("training_stop", "a right name")
    control.request("svae")  # wrong
    control.should_save = "yes"  # wrong
    bus.on("on_step_end", print)
