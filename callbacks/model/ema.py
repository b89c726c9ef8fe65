"""Keep an exponential moving average of the weights, and evaluate and save it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...engine.checkpoint.format.sharded import fitted
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.errors import ArgumentError
from ...events.stages import Stage, order


@dataclass
class EMA(Callback):
    """Averages the weights: after each update, average = decay * average + (1 - decay) * weights.

    Use it for smoother weights at the end of training: `EMA(decay=0.9999)`. The average replaces the weights during
    evaluations, in the model file of checkpoints, and after training. Checkpoints also hold the trained weights, so a
    resumed run continues with those. The average is float32 or wider.

    Raises:
        ArgumentError: for a decay outside of [0, 1), `every` below 1, or a second EMA in the run.
    """

    capabilities = frozenset({Capability.REPLACES_WEIGHTS})
    conflicts_with = (
        Conflict(
            Capability.REPLACES_WEIGHTS,
            "only one average can replace the weights during evaluations. Leave one of them out.",
        ),
    )

    decay: float = 0.999
    """The weight of the old average at each update, in [0, 1)."""
    every: int = 1
    """The number of steps between two updates of the average."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _average: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _trained: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ArgumentError(f"EMA(decay={self.decay}): set a decay of at least 0 and below 1.")
        if self.every < 1:
            raise ArgumentError(f"EMA(every={self.every}): set a number of steps of 1 or more.")

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        self._average, self._trained = {}, {}  # a resumed run restores its own later

    @order(Stage.PREPARE)
    def on_train_begin(self, model: nn.Module) -> None:
        if not self._average:
            # float32 or wider: the changes of the average are too small for half precision.
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
        self._swap_out(model)  # a vetoed checkpoint has no on_snapshot

    @order(Stage.PREPARE)
    def on_exception(self, model: nn.Module) -> None:
        self._swap_out(model)

    @order(Stage.PREPARE)
    def on_train_end(self, model: nn.Module) -> None:
        # In PREPARE, before KeepBest, which may load the weights of the best checkpoint.
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
    """Return the tensor, converted to float32 if its dtype is narrower."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _floating(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the names and weights that can be averaged."""
    return ((name, weight.data) for name, weight in model.named_parameters() if weight.is_floating_point())


def _copies(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in _floating(model)}
