"""Half-precision weights, with float32 master weights for the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...engine.seams import clip_gradients
from ...events.capabilities import Capability
from ...events.stages import Stage, order
from .master_weights import KnownWeights, copy_writes
from .mixed_precision import DTYPES, MixedPrecision

KEPT = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
"""Modules that stay in float32, because they sum many numbers and need the mantissa of float32."""


@dataclass
class HalfWeights(MixedPrecision):
    """Trains with weights and gradients in half precision. The optimizer updates float32 copies, the master weights.

    In Apex and PaddleNLP, this technique has the name `O2`. Set `fp16_opt_level="O2"` with `bf16=True` or `fp16=True`,
    or add `HalfWeights("bf16")` to the callbacks. `HalfWeights` replaces the callback `MixedPrecision`, and needs less
    memory than `MixedPrecision`. Normalization layers stay in float32, without a copy. The model file of a checkpoint
    has the half-precision weights. The callback state in the checkpoint has the master weights, so that a resume is
    exact. If your code changes elements of a weight, the same elements of the master weight get the changed values.
    After the run, the model has the values of the master weights, in float32.

    Raises:
        ArgumentError: if `dtype` is neither `bf16` nor `fp16`, or if `dtype` is `fp16` and the device is not a CUDA
            device.
    """

    arguments = ("bf16", "fp16", "fp16_opt_level", "scale_loss")
    instead_of = (MixedPrecision,)
    capabilities = frozenset({Capability.KEEPS_GROUPS})

    _masters: list[tuple[str, nn.Parameter, nn.Parameter]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )
    _known: KnownWeights = field(default_factory=KnownWeights, init=False, repr=False, compare=False)
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)
    _saved: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> HalfWeights | None:
        return cls.of_level(args, "O2")

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        if run.mode == "train":
            self._saved = {}
            run.seams.fill(
                "HalfWeights",
                prepare_model=self._halve,
                make_optimizer=self._give_masters,
                clip=self._clip,
                zero_grad=self._zero_grad,
            )

    def _scaler(self, device: str) -> torch.amp.GradScaler:
        return _MovingScaler(self._move_gradients, device, init_scale=self.initial_scale)

    def _halve(self, model: nn.Module) -> nn.Module:
        kept = {weight for module in model.modules() if isinstance(module, KEPT) for weight in module.parameters()}
        for name, weight in model.named_parameters():
            if weight.is_floating_point() and weight not in kept:
                self._masters.append((name, weight, nn.Parameter(weight.detach().float(), weight.requires_grad)))
                weight.data = weight.data.to(DTYPES[self.dtype])
        return model

    def _give_masters(self, make: Callable[[], Optimizer]) -> Optimizer:
        optimizer = make()
        exchange(optimizer, {weight: master for _, weight, master in self._masters})
        self._undo.append(optimizer.register_step_pre_hook(lambda *_: self._update_masters()).remove)
        self._undo.append(optimizer.register_step_post_hook(lambda *_: self._to_weights()).remove)
        self._undo.append(partial(exchange, optimizer, {master: weight for _, weight, master in self._masters}))
        return optimizer

    @order(Stage.PREPARE)
    def on_gradients(self) -> None:
        self._move_gradients()

    def _move_gradients(self) -> None:
        for _, weight, master in self._masters:
            if weight.grad is not None:
                master.grad, weight.grad = weight.grad.float(), None

    @torch.no_grad()
    def _to_weights(self) -> None:
        for name, weight, master in self._masters:
            weight.copy_(master)
            self._known.note(name, weight)

    def _clip(self, optimizer: Optimizer, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        self._move_gradients()  # a training step may clip before `on_gradients`
        return clip_gradients(optimizer, self._updated(parameters), max_norm)

    def _zero_grad(self, parameters: list[nn.Parameter]) -> None:
        for parameter in (*parameters, *self._updated(parameters)):
            parameter.grad = None

    def _updated(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        master_of = {weight: master for _, weight, master in self._masters}
        return [master_of.get(parameter, parameter) for parameter in parameters]

    @torch.no_grad()
    def on_load(self) -> None:
        self._update_masters()
        for name, _, master in self._masters:
            if name in self._saved:
                master.copy_(self._saved[name])
        self._saved = {}
        self._known.forget()

    @order(Stage.PREPARE)
    def on_save_due(self) -> None:
        # Before `on_save_begin`, in which another callback may replace the weights by their average.
        self._update_masters()

    @torch.no_grad()
    def on_close(self) -> None:
        super().on_close()
        self._update_masters()  # the best model or an average may have been loaded
        self._known.forget()
        for _, weight, master in self._masters:
            weight.grad, weight.data = None, master.data
        undo, self._undo, self._masters = self._undo, [], []
        for step in undo:
            step()

    def _update_masters(self) -> None:
        """Copy the changed elements of the weights into the master weights.

        Other code may change the weights: a handler, for example, or the run when it loads the best model.
        """
        for name, weight, master in self._masters:
            if self._known.may_differ(name, weight):
                copy_writes(master, weight)
                self._known.note(name, weight)

    def state_dict(self) -> dict[str, Any]:
        return {name: master.data for name, _, master in self._masters} or dict(self._saved)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = state


def exchange(optimizer: Optimizer, replaced: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Replace parameters of an optimizer. Each new parameter gets the optimizer state of the parameter it replaces.

    Args:
        optimizer: the optimizer.
        replaced: old parameter -> new parameter.
    """
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]
    for old, new in replaced.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


class _MovingScaler(torch.amp.GradScaler):
    """A loss scaler that moves the gradients from the weights to the master weights, and then unscales them."""

    def __init__(self, move: Callable[[], None], device: str, **options: Any) -> None:
        super().__init__(device, **options)
        self._move = move

    def unscale_(self, optimizer: Optimizer) -> None:
        self._move()
        super().unscale_(optimizer)
