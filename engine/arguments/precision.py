"""The arguments for mixed precision, TF32 and gradient checkpointing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from ._base import Group, arg, must


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class PrecisionArguments(Group):
    """Arguments for lower precision and recomputation. They save memory or time."""

    bf16: bool = arg(
        False,
        "Mixed precision in bfloat16. Forward and backward use bfloat16 for the operations for which it is safe. The "
        "weights stay float32, unless `fp16_opt_level` is 'O2'. Does not work with `fp16`.",
    )
    fp16: bool = arg(
        False,
        "Mixed precision in float16. Loss scaling prevents an underflow of the gradients. Prefer `bf16` if the "
        "device supports it. Does not work with `bf16`.",
    )
    fp16_opt_level: str = arg(
        "O1",
        "Level of mixed precision with `bf16` or `fp16`. 'O0': full precision. 'O1': half precision for the "
        "operations for which it is safe. 'O2' also converts the weights to half precision. With 'O2' the optimizer "
        "updates float32 copies of the weights. 'O2' does not work with sharding.",
        choices=("O0", "O1", "O2"),
        none=True,
    )
    scale_loss: float | None = arg(
        None, "Initial loss scale for `fp16`. Training then adapts the scale to the gradients. None: 65536."
    )
    bf16_full_eval: bool = arg(
        False,
        "Convert the weights to bfloat16 for calls of `evaluate()` and `predict()` outside of training. The weights "
        "then need half the memory. Does not work with `fp16_full_eval`.",
    )
    fp16_full_eval: bool = arg(
        False,
        "Convert the weights to float16 for calls of `evaluate()` and `predict()` outside of training. Does not work "
        "with `bf16_full_eval`.",
    )
    tf32: bool | None = arg(
        None,
        "Whether float32 matrix products use TF32 on GPUs of the Ampere generation and later. None: PyTorch's setting.",
    )
    torch_empty_cache_steps: int | None = arg(
        None,
        "Number of steps between two calls of `torch.cuda.empty_cache()`. The calls make training about 10 % slower. "
        "None: no calls.",
    )
    gradient_checkpointing: bool = arg(
        False,
        "Recompute activations in backward instead of storing them. Training needs less memory and is about 20 % "
        "slower.",
        none=True,
    )
    gradient_checkpointing_kwargs: dict[str, Any] | None = arg(
        None, "Options of `gradient_checkpointing`, such as {'use_reentrant': False}. None: the defaults.", json=True
    )

    def problems(self) -> Iterator[str]:
        if self.bf16 and self.fp16:
            yield "`bf16` and `fp16` are both True; set only one of them."
        if self.bf16_full_eval and self.fp16_full_eval:
            yield "`bf16_full_eval` and `fp16_full_eval` are both True; set only one of them."
        yield from must(self, lambda scale: 0 < scale < inf, "set it to a number above 0, or to None.", "scale_loss")
        yield from must(self, lambda n: n >= 1, "set it to 1 step or more, or to None.", "torch_empty_cache_steps")
