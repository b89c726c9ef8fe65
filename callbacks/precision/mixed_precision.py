"""Mixed precision: autocast to bfloat16, or to float16 with a loss scaler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.data.batches import map_tensors
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage
from ..model.forwards import wrap_forward

M = TypeVar("M", bound="MixedPrecision")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The half precisions by name."""


def to_float32(outputs: Any) -> Any:
    """Return outputs of a model with half-precision tensors converted to float32, for losses and metrics."""
    halves = (torch.float16, torch.bfloat16)
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype in halves else tensor, outputs)


@dataclass
class MixedPrecision(Callback):
    """Runs the model's forward under `torch.autocast` and returns float32 outputs. The weights stay float32.

    Set `bf16=True` or `fp16=True`, or add `MixedPrecision("bf16")` to the callbacks. Mixed precision makes training
    faster and saves activation memory. `fp16` also scales the loss, so that small gradients do not underflow.

    Raises:
        ArgumentError: if `dtype` is neither `bf16` nor `fp16`, if `dtype` is `fp16` and the device is not a CUDA
            device, or if `initial_scale` is not above 0.
    """

    stage = Stage.PREPARE
    arguments = ("bf16", "fp16", "fp16_opt_level", "scale_loss")

    dtype: Literal["bf16", "fp16"] = "bf16"
    """The half-precision type: `bf16` or `fp16`. `fp16` needs a CUDA device."""
    initial_scale: float = 65536.0
    """The initial loss scale for `fp16`. The loss scaler changes the scale during training."""
    _restore: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ArgumentError(f"{type(self).__name__}({self.dtype!r}): the dtype is unknown. Set 'bf16' or 'fp16'.")
        if not self.initial_scale > 0:
            raise ArgumentError(f"{type(self).__name__}(initial_scale={self.initial_scale}): set a scale above 0.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MixedPrecision | None:
        return cls.of_level(args, "O1")

    @classmethod
    def of_level(cls: type[M], args: TrainingArguments, level: str) -> M | None:
        """Build the callback if the arguments set half precision, and if `fp16_opt_level` equals `level`.

        In all other cases, return None. Also return None for DeepSpeed, because DeepSpeed itself trains in half
        precision.
        """
        if not (args.bf16 or args.fp16) or args.fp16_opt_level != level:
            return None
        if args.way_to_shard == "deepspeed":  # DeepSpeed does the half precision itself
            return None
        return cls("bf16" if args.bf16 else "fp16", 65536.0 if args.scale_loss is None else args.scale_loss)

    def on_setup(self, run: Run) -> None:
        device = run.args.device.type
        run.seams.fill(type(self).__name__, autocast=lambda: torch.autocast(device, dtype=DTYPES[self.dtype]))
        if self.dtype == "fp16":
            if device != "cuda":
                raise ArgumentError(
                    f"fp16 needs a CUDA device, but this run is on {device}, which does not compute in float16. "
                    "Use bf16, or no mixed precision."
                )
            run.seams.fill(type(self).__name__, scaler=self._scaler(device))
        self._wrap(run.model, device)

    def _scaler(self, device: str) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(device, init_scale=self.initial_scale)

    def _wrap(self, model: nn.Module, device: str) -> None:
        def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
            def in_half_precision(*args: Any, **kwargs: Any) -> Any:
                with torch.autocast(device, dtype=DTYPES[self.dtype]):
                    outputs = forward(*args, **kwargs)
                return to_float32(outputs)

            return in_half_precision

        self._restore = wrap_forward(model, wrap)

    def on_close(self) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
