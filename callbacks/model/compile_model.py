"""Compile the model, or its repeated blocks, with torch.compile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.arguments.model import COMPILE_MODES
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError, nearest
from ...events.stages import Stage
from .blocks import CONTAINERS, Kinds, blocks_of, modules_of

logger = logging.getLogger(__name__)

BLOCKS = "blocks"
"""The value of `regions` that selects the blocks that `blocks_of` finds."""


@dataclass
class Compile(Callback):
    """Compiles the model with `torch.compile` at the first batch.

    Set `torch_compile=True`, or add `Compile(mode="max-autotune")` to the callbacks. The names of the weights do not
    change, so a run with `Compile` can resume a checkpoint of a run without `Compile`. After the session, the model is
    no longer compiled.

    If a model has many equal blocks, such as the layers of a transformer, compilation is faster block by block. Use
    `Compile(regions="blocks")`, or pass the class of the blocks: `Compile(regions=(Block,))`. The blocks share the
    compiled code. The code between the blocks is not compiled.

    The first step of a session takes longer, because the model is compiled in this step. The callback logs the seconds
    of this step at level INFO. In the first evaluation, the model is compiled again, because an evaluation computes no
    gradients.

    Raises:
        ArgumentError: if the backend or the mode is unknown, or if `regions` is a text other than `"blocks"`.
        ModelError: if the model has no module of a class in `regions`, if such a class has no forward, or if the
            callback finds no blocks for `"blocks"`.
    """

    stage = Stage.PREPARE
    arguments = ("torch_compile", "torch_compile_backend", "torch_compile_mode")

    backend: str = "inductor"
    """A name in `torch.compiler.list_backends()`. To find errors, use `eager` or `aot_eager`."""
    mode: str | None = None
    """The mode: `default`, `reduce-overhead`, `max-autotune` or `max-autotune-no-cudagraphs`. None: `default`. Only the
    backend `inductor` has modes."""
    dynamic: bool | None = None
    """Whether to compile for dynamic shapes. With True, inputs of a new shape need no new compilation. None: PyTorch
    decides."""
    regions: Kinds | str = ()
    """The classes of the modules to compile, or the names of these classes. Each such module is compiled separately.
    Default: the whole model. The value `"blocks"` selects the blocks of the model. These are the modules of the classes
    in `_no_split_modules` of a transformers model, or else the members of the outermost `nn.ModuleList`s."""
    _before: list[tuple[nn.Module, Any]] = field(default_factory=list, init=False, repr=False, compare=False)
    _warm: bool = field(default=False, init=False, repr=False, compare=False)
    _began: tuple[float, int] = field(default=(0.0, 0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.regions, str) and self.regions != BLOCKS:
            raise ArgumentError(
                f"Compile(regions={self.regions!r}): the only text is {BLOCKS!r}. Write classes as a tuple: "
                f"regions=({self.regions!r},)."
            )
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
        self._warm = False
        for module in self._modules(run.model):
            self._before.append((module, module._compiled_call_impl))
            call: Any = torch.compile(_call_of(module), backend=self.backend, mode=self.mode, dynamic=self.dynamic)
            module._compiled_call_impl = call

    def _modules(self, model: nn.Module) -> list[nn.Module]:
        if not self.regions:
            return [model]
        found = blocks_of(model) if isinstance(self.regions, str) else modules_of(model, self.regions)
        if not found:
            raise ModelError(
                f"Compile(regions={BLOCKS!r}) finds no blocks in {type(model).__name__}: it has no nn.ModuleList. Name "
                "the classes of the blocks: Compile(regions=(Block,))."
            )
        for module in found:
            if isinstance(module, CONTAINERS):
                raise ModelError(
                    f"Compile(regions=({type(module).__name__},)): the class has no forward, so there is nothing to "
                    "compile. Name the class of its members."
                )
        # An outer region contains the code of its inner regions.
        return [module for module in found if not any(module in {*other.modules()} - {other} for other in found)]

    def on_step_begin(self) -> None:
        if not self._warm:
            self._began = time.perf_counter(), _graphs()

    def on_step_end(self) -> None:
        if not self._warm:
            self._warm = True
            began, graphs = self._began
            regions = f"{len(self._before)} modules share" if self.regions else "The model has"
            logger.info(
                "The first step took %.1f seconds, the compilation included. %s %d newly compiled graphs.",
                *(time.perf_counter() - began, regions, _graphs() - graphs),
            )

    def on_close(self) -> None:
        before, self._before = self._before, []
        for module, compiled_call in before:
            module._compiled_call_impl = compiled_call  # torch has no method that undoes `compile`


def _call_of(module: nn.Module) -> Callable[..., Any]:
    """Return a function that calls a module. The caller compiles this function instead of the module.

    If the forward of the module is code of torch, as in `nn.Sequential`, `torch.compile` of the module would silently
    compile nothing. The returned function is not code of torch, so `torch.compile` always compiles it.
    """

    called: Any = module

    def call(*args: Any, **kwargs: Any) -> Any:
        return called._call_impl(*args, **kwargs)

    kind = type(module)
    call.__code__ = _CODES.setdefault(kind, call.__code__.replace(co_name=kind.__name__))
    return call


_CODES: WeakKeyDictionary[type, CodeType] = WeakKeyDictionary()
"""Class of modules -> the code object of the functions that `_call_of` returns for this class. Modules with the same
code object share compiled graphs. Each class has its own code object, because torch limits the number of graphs per
code object."""


def _graphs() -> int:
    """Return how many graphs torch has compiled in this process so far."""
    from torch._dynamo.utils import counters  # a slow import, which `compile` needs too

    return int(counters["stats"]["unique_graphs"])
