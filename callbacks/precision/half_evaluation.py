"""Evaluate and predict with weights in half precision."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from ...engine.arguments import TrainingArguments
from ...engine.data.batches import map_tensors
from ...engine.loss.signature import label_names_of
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.errors import ArgumentError
from ...events.stages import Stage
from ..model.forwards import wrap_forward
from .mixed_precision import DTYPES


@dataclass
class HalfEvaluation(Callback):
    """Converts weights and buffers to half precision for calls of `evaluate()` and `predict()` outside of training.

    Set `bf16_full_eval=True` or `fp16_full_eval=True`, or add `HalfEvaluation("fp16")` to the callbacks. On a GPU, the
    weights then need half of the memory. During the call, the original weights are in host memory. After the call, the
    model has the original weights again. The callback also converts float32 inputs of the model, except labels. The
    callback does not change evaluations during training.

    Raises:
        ArgumentError: if `dtype` is unknown, or if a callback shards the weights.
    """

    stage = Stage.PREPARE
    arguments = ("bf16_full_eval", "fp16_full_eval")
    conflicts_with = (
        Conflict(
            Capability.SHARDS_MODEL,
            "it converts full weights to half precision, but the other one shards them. Leave out `bf16_full_eval`, "
            "`fp16_full_eval` and HalfEvaluation. `fsdp_config={'mixed_precision': 'bf16'}` uses half precision.",
        ),
    )

    dtype: Literal["bf16", "fp16"] = "bf16"
    """The half precision: `bf16` or `fp16`."""
    _restore: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)
    _full: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ArgumentError(f"HalfEvaluation({self.dtype!r}): the dtype is unknown. Set 'bf16' or 'fp16'.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> HalfEvaluation | None:
        if not (args.bf16_full_eval or args.fp16_full_eval):
            return None
        return cls("bf16" if args.bf16_full_eval else "fp16")

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            return
        self._restore = wrap_forward(run.model, partial(self._with_half_inputs, label_names_of(run.model)))
        for tensor in (*run.model.parameters(), *run.model.buffers()):
            if tensor.is_floating_point():
                self._full.append((tensor, tensor.data.to("cpu")))
                tensor.data = tensor.data.to(DTYPES[self.dtype])

    def _with_half_inputs(self, labels: Collection[str], forward: Callable[..., Any]) -> Callable[..., Any]:
        def halve(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(DTYPES[self.dtype]) if tensor.dtype == torch.float32 else tensor

        def with_half_inputs(*args: Any, **kwargs: Any) -> Any:
            kwargs = {name: value if name in labels else map_tensors(halve, value) for name, value in kwargs.items()}
            return forward(*map_tensors(halve, args), **kwargs)

        return with_half_inputs

    def on_close(self) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
        full, self._full = self._full, []
        for tensor, values in full:
            tensor.data = values.to(tensor.device)
