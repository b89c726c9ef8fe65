"""Callbacks, handlers and metrics that stop a run, make it fail or script it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from trainbus import Callback


def scripted(values: Iterable[float], name: str = "score") -> Callable[[Any], dict[str, float]]:
    """Return a `compute_metrics` that returns these values in turn, and then repeats the last one."""
    remaining = list(values)

    def measure(prediction: Any) -> dict[str, float]:
        return {name: remaining.pop(0) if len(remaining) > 1 else remaining[0]}

    return measure


def stop_at(step: int) -> Callable[..., None]:
    """Return a handler of `on_step_end` that stops the run at a step."""

    def interrupt(state: Any, control: Any) -> None:
        if state.global_step == step:
            control.request("training_stop", "interrupted by the test")

    return interrupt


class Poison(Callback):
    """A callback that makes the loss of some steps NaN."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_loss(self, run: Any, state: Any, loss: Any) -> None:
        if state.global_step + 1 in self.steps:
            run.loss = loss * math.nan


class Boom(Exception):
    """An error that a test raises."""
