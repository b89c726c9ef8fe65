"""Liger kernels: faster layers for models of transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from liger_kernel.transformers import _apply_liger_kernel_to_instance as apply_kernels

from ..engine.arguments import TrainingArguments
from ..engine.loss.signature import user_model
from ..engine.run import Run
from ..events.callback import Callback
from ..events.errors import ModelError
from ..events.stages import Stage


def architecture(model: Any) -> str:
    """Return the architecture of a model of transformers, such as `llama`, from `config.model_type`.

    Raises:
        ModelError: if the model has no `config.model_type`. liger-kernel chooses the kernels by this name.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if not kind:
        raise ModelError(
            "use_liger_kernel=True chooses kernels by the `config.model_type` of a model of transformers, and "
            f"{type(model).__name__} has none. Train a model of transformers, or leave use_liger_kernel out."
        )
    return str(kind)


@dataclass
class Liger(Callback):
    """Before training, replaces layers of the model with faster kernels of the package liger-kernel.

    Set `use_liger_kernel=True` in the arguments. To choose kernels, add `Liger({"rope": True})` to the callbacks
    instead. If liger-kernel has no kernels for the architecture of the model, the model does not change. The model
    keeps the kernels after the run.

    Raises:
        ModelError: if the model is not a transformers model.
    """

    stage = Stage.PREPARE
    arguments = ("use_liger_kernel", "liger_kernel_config")

    kernels: dict[str, bool] = field(default_factory=dict)
    """A dict that maps the name of a kernel to True (use the kernel) or False. For kernels without an entry,
    liger-kernel decides."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Liger | None:
        return cls(dict(args.liger_kernel_config or {})) if args.use_liger_kernel else None

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        model: Any = user_model(run.model)  # a wrapper, such as a PEFT adapter, has no layers to replace
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        architecture(model)
        apply_kernels(model=model, **self.kernels)
