"""Keep an exponential moving average of the weights, and evaluate and save that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...engine.checkpoint.format.sharded import fitted
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage, order


@dataclass
class EMA(Callback):
    """Averages the weights: after each update, average = decay * average + (1 - decay) * weights.

    The average stands in for the weights during evaluations, in the model file of checkpoints, and after training. The
    weights that are trained are kept beside it in each checkpoint, so that a resumed run goes on with those.
    """

    decay: float = 0.999
    """How much of the average stays at each update, in [0, 1)."""
    every: int = 1
    """Update the average once in this many steps."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _average: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _trained: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ArgumentError(f"EMA(decay={self.decay}): the decay is at least 0 and below 1.")
        if self.every < 1:
            raise ArgumentError(f"EMA(every={self.every}): update at least once in a number of steps from 1.")

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if any(other is not self and isinstance(other, EMA) for other in run.bus.subscribers.values()):
            raise ArgumentError("Two EMA in one run: only one average can stand in for the weights.")
        self._average, self._trained = {}, {}  # of an earlier run; a resumed one is given its own back

    @order(Stage.PREPARE)
    def on_train_begin(self, model: nn.Module) -> None:
        if not self._average:
            # In float32 at least: the steps of the average are too small for half precision.
            self._average = {name: at_least_float32(weight).clone() for name, weight in _floating(model)}

    @order(Stage.MEASURE)
    def on_optimizer_step(self, run: Run, model: nn.Module) -> None:
        if (run.state.global_step + 1) % self.every == 0:
            pairs = ((self._average[name], at_least_float32(weight)) for name, weight in _floating(model))
            averages, weights = zip(*pairs)
            torch._foreach_lerp_(averages, weights, 1 - self.decay)

    @order(Stage.PREPARE)
    def on_evaluate_begin(self, run: Run, model: nn.Module) -> None:
        if run.mode == "train":
            self._swap_in(model)

    @order(Stage.RELEASE)
    def on_evaluate_end(self, model: nn.Module) -> None:
        self._swap_out(model)

    @order(Stage.PREPARE)
    def on_save_begin(self, model: nn.Module) -> None:
        self._swap_in(model)

    @order(Stage.PREPARE)
    def on_snapshot(self, model: nn.Module) -> None:
        self._swap_out(model)

    @order(Stage.PREPARE)
    def on_step_begin(self, model: nn.Module) -> None:
        self._swap_out(model)  # a checkpoint that was vetoed never came to on_snapshot

    @order(Stage.PREPARE)
    def on_exception(self, model: nn.Module) -> None:
        self._swap_out(model)

    @order(Stage.PREPARE)
    def on_train_end(self, model: nn.Module) -> None:
        # Before KeepBest, which may load the best average over this one.
        self._swap_in(model)
        self._trained, self._average = {}, {}

    @order(Stage.PREPARE)
    def on_load(self, model: nn.Module) -> None:
        weights = dict(_floating(model))
        self._average, self._trained = (
            {name: fitted(value, weights[name]).to(weights[name].device) for name, value in values.items()}
            for values in (self._average, self._trained)
        )
        self._swap_out(model)

    @torch.no_grad()
    def _swap_in(self, model: nn.Module) -> None:
        if self._average and not self._trained:
            self._trained = _copies(model)
            for name, weight in _floating(model):
                weight.copy_(self._average[name])

    @torch.no_grad()
    def _swap_out(self, model: nn.Module) -> None:
        if self._trained:
            for name, weight in _floating(model):
                weight.copy_(self._trained[name])
            self._trained = {}

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "trained": self._trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average, self._trained = state["average"], state["trained"]


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor itself, or where its numbers have fewer bits, in float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _floating(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the weights that an average makes sense of."""
    return ((name, weight.data) for name, weight in model.named_parameters() if weight.is_floating_point())


def _copies(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in _floating(model)}
