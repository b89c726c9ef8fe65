"""Find the first module whose weights or output are not finite."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.data.batches import map_tensors
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, NonFiniteError
from ...events.stages import Stage
from ..base.missing_logits import MissingLogits
from ..base.module_changes import hook_forward


@dataclass
class WatchNumbers(Callback):
    """Checks the parameters and the output of each module, and raises an error at the first value that is not finite.

    Use the callback to debug a run with a NaN loss: set `debug="underflow_overflow"`, or add `WatchNumbers()` to the
    callbacks. The callback reads every number of every module, so the run is several times slower. The error lists the
    parameters, inputs and outputs that the callback read just before the failure. If an input of the failing module is
    not finite, the cause is in the code that calls the module.

    Raises:
        ArgumentError: if `shown` is below 1.
        NonFiniteError: at the first value that is not finite.
    """

    stage = Stage.PREPARE
    arguments = ("debug",)

    shown: int = 20
    """The largest number of parameters, inputs and outputs that the error lists. The error shows the smallest and the
    largest magnitude of each tensor."""
    _seen: deque[str] = field(default_factory=deque, init=False, repr=False, compare=False)
    _unhook: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.shown < 1:
            raise ArgumentError(f"WatchNumbers(shown={self.shown}): set a number of 1 or more.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> WatchNumbers | None:
        return cls() if "underflow_overflow" in args.observed else None

    def on_setup(self, run: Run) -> None:
        self._seen = deque(maxlen=self.shown)
        for name, module in run.model.named_modules():
            look = self._watch(name or type(module).__name__, run)
            self._unhook.append(hook_forward(module, look, with_kwargs=True))

    def _watch(self, name: str, run: Run) -> Any:
        def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            for given in tensors_in((args, kwargs)):  # inputs may be infinite, such as masks
                self._seen.append(f"{_range_of(given)}  {name} input")
            weights = [(f"{name}.{key}", weight) for key, weight in module.named_parameters(recurse=False)]
            for what, tensor in [*weights, *((f"{name} output", made) for made in tensors_in(output))]:
                self._seen.append(f"{_range_of(tensor)}  {what}")
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    listed = "\n".join(self._seen)
                    raise NonFiniteError(
                        f"{what} is not finite after step {run.state.global_step}. Smallest and largest magnitudes "
                        f"before it:\n{listed}"
                    )

        return look

    def on_close(self) -> None:
        unhook, self._unhook = self._unhook, []
        self._seen.clear()
        for remove in unhook:
            remove()


def tensors_in(data: Any) -> list[torch.Tensor]:
    """Return all tensors in nested data, except the tensors without values that `ChunkedCrossEntropy` returns."""
    found: list[torch.Tensor] = []
    map_tensors(found.append, data)
    return [each for each in found if not isinstance(each, MissingLogits)]


def _range_of(tensor: torch.Tensor) -> str:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return f"{'-':>9} {'-':>9}"
    magnitude = tensor.detach().abs()
    return f"{magnitude.min().item():9.2e} {magnitude.max().item():9.2e}"
