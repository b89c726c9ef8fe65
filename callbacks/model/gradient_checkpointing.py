"""Recompute activations in the backward pass instead of storing them: less memory, more time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ModelError
from ...events.stages import Stage
from ..base.module_changes import change_by
from .blocks import Kinds, modules_of
from .forwards import recomputed, replace_forward


@dataclass
class GradientCheckpointing(Callback):
    """Recomputes activations in the backward pass, to save memory.

    Set `gradient_checkpointing=True` in the arguments to use the callback. The callback calls the method
    `activation_checkpointing_enable` of the model, or else `gradient_checkpointing_enable`. Models of transformers have
    such a method. If your program already enabled checkpointing on the model, the callback changes nothing.

    If the model has no such method, name the classes of the blocks: `GradientCheckpointing(blocks=(Block,))`. With
    `blocks`, the callback replaces the forward of these blocks, and calls no method of the model.

    Raises:
        ModelError: if `blocks` is empty and the model has neither method, or if the model has no module of a class in
            `blocks`.
    """

    stage = Stage.PREPARE
    arguments = ("gradient_checkpointing", "gradient_checkpointing_kwargs")

    options: dict[str, Any] = field(default_factory=dict)
    """Options for the method of the model. With `blocks`: options for `torch.utils.checkpoint.checkpoint`."""
    blocks: Kinds = ()
    """The classes of the modules to recompute, or the names of these classes. Default: the model chooses the
    modules."""
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> GradientCheckpointing | None:
        return cls(dict(args.gradient_checkpointing_kwargs or {})) if args.gradient_checkpointing else None

    def on_setup(self, run: Run) -> None:
        model: Any = run.model  # not every module has the methods that are called here
        if run.mode != "train":
            return
        if self.blocks:
            self._wrap_blocks(model)
        elif any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
            return  # the user enabled it, so it stays enabled
        elif hasattr(model, "activation_checkpointing_enable"):
            options = dict(self.options)
            special = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
            enable = partial(
                model.activation_checkpointing_enable, activation_checkpointing_kwargs=options or None, **special
            )
            self._undo.append(change_by(model, enable, model.activation_checkpointing_disable))
        elif hasattr(model, "gradient_checkpointing_enable"):
            enable = partial(model.gradient_checkpointing_enable, gradient_checkpointing_kwargs=self.options or None)
            if hasattr(model, "gradient_checkpointing_disable"):
                self._undo.append(change_by(model, enable, model.gradient_checkpointing_disable))
            else:
                enable()
        else:
            kinds = sorted({type(module).__name__ for module in model.modules() if module is not model})
            raise ModelError(
                f"{type(model).__name__} has no method gradient_checkpointing_enable. Name the classes of its blocks: "
                f"GradientCheckpointing(blocks=(Block,)). Its modules are: {', '.join(kinds)}."
            )

    def _wrap_blocks(self, model: nn.Module) -> None:
        for module in modules_of(model, self.blocks):
            self._undo.append(replace_forward(module, recomputed(module.forward, **self.options)))

    def on_close(self) -> None:
        undo, self._undo = self._undo, []
        for step in undo:
            step()
