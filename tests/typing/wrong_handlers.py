"""Handlers with a wrong annotation. Each line marked `wrong` is an error of mypy and of pyright."""

from __future__ import annotations

from typing import Any

import torch

from trainbus import TrainerControl, TrainerState
from trainbus.events import EventBus, TypedCallback


class Wrong(TypedCallback):
    def on_log(self, *, logs: int, **kwargs: Any) -> None:  # wrong
        print(logs)

    def on_step_end(self, *, state: TrainerControl, loss: torch.Tensor, **kwargs: Any) -> None:  # wrong
        print(state, loss)

    def on_evaluate(self, *, state: TrainerState, metrics: dict[str, str], **kwargs: Any) -> None:  # wrong
        print(state, metrics)


def raise_a_flag(control: TrainerControl, bus: EventBus) -> None:
    control.request("training_stop", "a right name")
    control.request("svae")  # wrong
    control.should_save = "yes"  # wrong
    bus.on("on_step_end", print)
