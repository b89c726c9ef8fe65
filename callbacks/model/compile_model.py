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
    """Compiles the model at its first batch; names of weights stay as they are, and after the run so does the model."""

    stage = Stage.PREPARE
    arguments = ("torch_compile", "torch_compile_backend", "torch_compile_mode")

    backend: str = "inductor"
    """What compiles: a name that `torch.compiler.list_backends()` has, or `eager` and `aot_eager` to find errors."""
    mode: str | None = None
    """What for: `default`, `reduce-overhead`, `max-autotune` or `max-autotune-no-cudagraphs`; for `inductor` only."""
    dynamic: bool | None = None
    """Whether batches may differ in shape without compiling again; None finds out."""
    _before: tuple[Any, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = torch.compiler.list_backends(exclude_tags=None)
        if self.backend not in known:
            raise ArgumentError(
                f"Compile(backend={self.backend!r}){nearest(self.backend, known)} There are: {', '.join(known)}."
            )
        if self.mode is not None and self.mode not in COMPILE_MODES:
            known = [*COMPILE_MODES]
            raise ArgumentError(
                f"Compile(mode={self.mode!r}){nearest(self.mode, known)} There are: {', '.join(known)}."
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
            model, called = before
            model._compiled_call_impl = called  # what `compile` set; there is no method that unsets it
