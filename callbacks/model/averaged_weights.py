"""The base class of callbacks that average the weights, and use the average for evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...engine.checkpoint.format.sharded import fitted
from ...engine.loss.loss_module import LossModule
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.stages import Stage, order
from ..parallel.split_weights import local_part

LOSS_MODULE = "<loss module>."
"""The prefix that the average gives to the names of a loss module's parameters. No name of a model has this prefix."""


@dataclass
class AveragedWeights(Callback):
    """Base class of callbacks that average the floating-point parameters of the model and of a loss module.

    The average replaces these parameters during evaluations, in the model file of checkpoints, and after training.
    Buffers are not averaged. The callback state in checkpoints has the trained parameters, so a resumed run continues
    with the trained parameters. The dtype of the average is float32 or wider.

    A subclass calls `begin_average` and `move_average`. These methods fill the dict `_average`: name of a parameter ->
    average. Before the average begins, the dict is empty.
    """

    capabilities = frozenset({Capability.REPLACES_WEIGHTS})
    conflicts_with = (
        Conflict(
            Capability.REPLACES_WEIGHTS,
            "only one average can replace the weights during evaluations. Leave one of them out.",
        ),
    )

    _loss_module: LossModule | None = field(default=None, init=False, repr=False, compare=False)
    _average: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _trained: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _stays: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the average stays in the model, because the training ends."""

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        self._average, self._trained, self._stays = {}, {}, False  # a resumed run restores its own later
        attached = run.bus.subscribers.values()
        self._loss_module = next((each for each in attached if isinstance(each, LossModule)), None)

    def begin_average(self, model: nn.Module) -> None:
        """Start the average of each parameter that has no average yet, at the current value of the parameter."""
        for name, weight in self._floating(model):
            if name not in self._average:
                # float32 or wider: the changes of the average are too small for half precision.
                self._average[name] = at_least_float32(weight).clone()

    def move_average(self, model: nn.Module, share: float) -> None:
        """Set average = average + share * (weights - average), with the current weights.

        `share` is in [0, 1]. A parameter without an average starts its average at its current value.
        """
        if any(name not in self._average for name, _ in self._floating(model)):
            self.begin_average(model)  # the first batch gave lazy weights their shape
        # One list must not mix sharded weights with the whole weights of a loss module.
        pairs = (
            (local_part(self._average[name]), local_part(at_least_float32(weight)))
            for name, weight in self._floating(model)
        )
        averages, weights = zip(*pairs)
        torch._foreach_lerp_(averages, weights, share)

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
        self._stays = False
        self._swap_out(model)  # SaveOnException may save after this, also after an error at the end of the training

    @order(Stage.PREPARE)
    def on_train_end(self, run: Run, model: nn.Module) -> None:
        # In PREPARE, before KeepBest, which may load the weights of the best checkpoint.
        self._swap_in(model)
        self._stays = bool(self._trained)

    def on_close(self) -> None:
        if self._stays:
            self._trained, self._average, self._stays = {}, {}, False

    @order(Stage.PREPARE)
    def on_load(self, model: nn.Module) -> None:
        weights = dict(self._floating(model))
        self._average, self._trained = (
            {name: fitted(value, weights[name]).to(weights[name].device) for name, value in values.items()}
            for values in (self._average, self._trained)
        )
        self._swap_out(model)

    @torch.no_grad()
    def _swap_in(self, model: nn.Module) -> None:
        if self._average and not self._trained:
            self._trained = {name: weight.clone() for name, weight in self._floating(model)}
            for name, weight in self._floating(model):
                weight.copy_(self._average[name])

    @torch.no_grad()
    def _swap_out(self, model: nn.Module) -> None:
        if self._trained and not self._stays:
            for name, weight in self._floating(model):
                if name in self._trained:  # a former checkpoint has no parameters of a loss module
                    weight.copy_(self._trained[name])
            self._trained = {}

    def _floating(self, model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        """Yield the name and the data of each floating-point parameter of the model and of the loss module.

        Lazy parameters that have no shape yet are left out.
        """
        loss = [] if self._loss_module is None else self._loss_module.own_parameters(model)
        for name, weight in (*model.named_parameters(), *((f"{LOSS_MODULE}{name}", weight) for name, weight in loss)):
            if weight.is_floating_point() and not is_lazy(weight):
                yield name, weight.data

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "trained": self._trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average, self._trained = state["average"], state["trained"]


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, converted to float32 if its dtype is narrower."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
