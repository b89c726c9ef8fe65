"""Recompute activations in the backward pass instead of keeping them: less memory for more time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ModelError
from ...events.stages import Stage
from .blocks import Kinds, modules_of
from .forwards import replace_forward


@dataclass
class GradientCheckpointing(Callback):
    """Switches on a model's own recomputation, or recomputes the blocks of a plain one.

    A model with `activation_checkpointing_enable` or `gradient_checkpointing_enable` (as those of transformers) is told
    so; of any other, name the classes of its blocks.
    """

    stage = Stage.PREPARE
    arguments = ("gradient_checkpointing", "gradient_checkpointing_kwargs")

    options: dict[str, Any] = field(default_factory=dict)
    """Passed to `torch.utils.checkpoint.checkpoint`, or to the model's own method."""
    blocks: Kinds = ()
    """The modules to recompute, each as a whole, for a model without a method of its own: their classes, or names of
    such."""
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> GradientCheckpointing | None:
        return cls(dict(args.gradient_checkpointing_kwargs or {})) if args.gradient_checkpointing else None

    def on_setup(self, run: Run) -> None:
        model: Any = run.model  # the methods asked for are not every module's
        if run.mode != "train":
            return
        if self.blocks:
            self._wrap_blocks(model)
        elif any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
            return  # switched on by the user, and not ours to switch off
        elif hasattr(model, "activation_checkpointing_enable"):
            options = dict(self.options)
            special = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
            model.activation_checkpointing_enable(activation_checkpointing_kwargs=options or None, **special)
            self._undo.append(model.activation_checkpointing_disable)
        elif hasattr(model, "gradient_checkpointing_enable"):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=self.options or None)
            self._undo.append(getattr(model, "gradient_checkpointing_disable", _nothing))
        else:
            kinds = sorted({type(module).__name__ for module in model.modules() if module is not model})
            raise ModelError(
                f"{type(model).__name__} cannot recompute by itself: it has no gradient_checkpointing_enable. Name the "
                f"classes of its blocks: GradientCheckpointing(blocks=(Block,)). It is made of: {', '.join(kinds)}."
            )

    def _wrap_blocks(self, model: nn.Module) -> None:
        for module in modules_of(model, self.blocks):
            options = {"use_reentrant": False, **self.options}
            self._undo.append(replace_forward(module, partial(checkpoint, module.forward, **options)))

    def on_close(self) -> None:
        undo, self._undo = self._undo, []
        for step in undo:
            step()


def _nothing() -> None:
    """Undo nothing: the model can only be switched on."""
