"""Compile the model with torch.compile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ...engine.arguments import TrainingArguments
from ...engine.arguments.model import COMPILE_MODES
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, nearest
from ...events.stages import Stage


@dataclass
class Compile(Callback):
    """Compiles the model with `torch.compile` at its first batch.

    Set `torch_compile=True`, or add `Compile(mode="max-autotune")` to the callbacks. The names of the weights do not
    change. After the run the model is no longer compiled.

    Raises:
        ArgumentError: for an unknown backend or mode.
    """

    stage = Stage.PREPARE
    arguments = ("torch_compile", "torch_compile_backend", "torch_compile_mode")

    backend: str = "inductor"
    """The backend: a name in `torch.compiler.list_backends()`. `eager` and `aot_eager` are for finding errors."""
    mode: str | None = None
    """`default`, `reduce-overhead`, `max-autotune` or `max-autotune-no-cudagraphs`. Only for `inductor`."""
    dynamic: bool | None = None
    """Whether to compile for dynamic shapes, so that a new shape needs no new compilation. None: PyTorch decides."""
    _before: tuple[Any, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = torch.compiler.list_backends(exclude_tags=None)
        if self.backend not in known:
            raise ArgumentError(
                f"Compile(backend={self.backend!r}): the backend is unknown{nearest(self.backend, known)} "
                f"Known: {', '.join(known)}."
            )
        if self.mode is not None and self.mode not in COMPILE_MODES:
            known = [*COMPILE_MODES]
            raise ArgumentError(
                f"Compile(mode={self.mode!r}): the mode is unknown{nearest(self.mode, known)} "
                f"Known: {', '.join(known)}."
            )

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Compile | None:
        if not (args.torch_compile or args.torch_compile_backend or args.torch_compile_mode):
            return None
        return cls(args.torch_compile_backend or "inductor", args.torch_compile_mode)

    def on_setup(self, run: Run) -> None:
        self._before = (run.model, run.model._compiled_call_impl)
        run.model.compile(backend=self.backend, mode=self.mode, dynamic=self.dynamic)

    def on_close(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            model, compiled_call = before
            model._compiled_call_impl = compiled_call  # torch has no method that undoes `compile`
