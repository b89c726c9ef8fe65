"""Log the gradients, weights and outputs of each module."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.stages import Stage, order
from ...events.trigger_fields import check_triggers
from ...events.triggers import Moment, Trigger, every
from ..base.module_changes import hook_forward
from .watch_numbers import tensors_in


@dataclass
class WatchModules(Callback):
    """Logs statistics of each module that directly owns parameters, at the steps of a trigger.

    - `gradients/<module>`: the norm of the gradients, before clipping;
    - `weights/<module>`: the norm of the parameters, before the update;
    - `activations/<module>/mean`, `/std` and `/max`: the statistics of the module's last output in the step. `max` is
      the largest magnitude. If an output has several floating-point tensors, the first tensor counts.

    The parameters of inner modules do not count for an outer module. A step without a measurement has almost no extra
    cost. `WatchModules(every(100), modules="encoder")` watches the modules with names that start with `encoder`.

    Raises:
        ArgumentError: if `trigger` is not a trigger, or is a trigger in epochs.
    """

    stage = Stage.MEASURE
    conflicts_with = (
        Conflict(Capability.SHARDS_MODEL, "it reads full weights and gradients. Use it with DDP or a single process."),
        Conflict(Capability.DEEPSPEED, "DeepSpeed holds the gradients. Use it with DDP or a single process."),
    )

    trigger: Trigger = field(default_factory=lambda: every(100))
    """Which steps to measure. Default: every 100 steps."""
    modules: str = ""
    """Which modules to watch, as a regular expression that matches the start of the module names. Default: all
    modules."""
    gradients: bool = True
    """Whether to log the norms of gradients and parameters."""
    activations: bool = True
    """Whether to log the statistics of the outputs of the modules."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _unhook: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)
    _values: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)
    _due: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_triggers(self, in_steps=True)

    def _watched(self, model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
        return (
            (name or type(module).__name__, module)
            for name, module in model.named_modules()
            if re.match(self.modules, name) and next(module.parameters(recurse=False), None) is not None
        )

    def on_step_begin(self, run: Run) -> None:
        now = run.moment("step")
        # The trigger is asked about the end of this step.
        ends = now._replace(step=now.step + 1, last=now.step + 1 >= now.max_steps, cut=False)
        self._due = self.trigger.due(ends, self._last)
        if self._due:
            self._last = ends
        if self._due and self.activations:
            self._unhook = [hook_forward(module, self._measure(name)) for name, module in self._watched(run.model)]

    def _measure(self, name: str) -> Any:
        def measure(module: nn.Module, inputs: Any, output: Any) -> None:
            made = [tensor.detach() for tensor in tensors_in(output) if tensor.is_floating_point()]
            if made:
                values = made[0].float()
                self._values[f"activations/{name}/mean"] = values.mean()
                self._values[f"activations/{name}/std"] = values.std(correction=0)
                self._values[f"activations/{name}/max"] = values.abs().max()

        return measure

    @order(Stage.PREPARE)
    def on_gradients(self, run: Run) -> None:
        if not (self._due and self.gradients):
            return
        for name, module in self._watched(run.model):
            weights = [*module.parameters(recurse=False)]
            self._values[f"weights/{name}"] = total_norm(weights)
            grads = [weight.grad for weight in weights if weight.grad is not None]
            if grads:
                self._values[f"gradients/{name}"] = total_norm(grads)

    def on_step_end(self, run: Run) -> None:
        if self._due:
            self._remove_hooks()
            values, self._values = self._values, {}
            run.log({name: value.item() for name, value in values.items()})

    def on_close(self) -> None:
        self._remove_hooks()
        self._values, self._due, self._last = {}, False, None

    def _remove_hooks(self) -> None:
        unhook, self._unhook = self._unhook, []
        for remove in unhook:
            remove()


@torch.no_grad()
def total_norm(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of all elements of all tensors together, as a tensor without dimensions."""
    norms = [torch.linalg.vector_norm(tensor.detach().float()) for tensor in tensors]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
