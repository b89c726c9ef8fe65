"""Liger kernels: layers of models of transformers, replaced by faster ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from liger_kernel.transformers import _apply_liger_kernel_to_instance as apply_kernels

from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.callback import Callback
from ..events.errors import ModelError
from ..events.stages import Stage


def architecture(model: Any) -> str:
    """Return what a model of transformers says that it is, such as `llama`.

    Raises:
        ModelError: for a model that does not say it, so that no kernel can be chosen.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if not kind:
        raise ModelError(
            f"use_liger_kernel=True replaces layers by the architecture that a model of transformers names in "
            f"`config.model_type`, and {type(model).__name__} names none: train a model of transformers, or leave "
            "use_liger_kernel out."
        )
    return str(kind)


@dataclass
class Liger(Callback):
    """Replaces layers of the model by the kernels of liger-kernel before it is trained.

    An architecture that the package has no kernels for stays as it is. The model keeps the kernels after the run.
    """

    stage = Stage.PREPARE
    arguments = ("use_liger_kernel", "liger_kernel_config")

    kernels: dict[str, bool] = field(default_factory=dict)
    """Which kernels to use, such as `{"rope": True}`; what is not named is the package's choice."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Liger | None:
        return cls(dict(args.liger_kernel_config or {})) if args.use_liger_kernel else None

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        model: Any = run.model
        if hasattr(model, "get_base_model"):  # an adapter of peft, which stands around the model whose layers are meant
            model = model.get_base_model()
        architecture(model)
        apply_kernels(model=model, **self.kernels)
