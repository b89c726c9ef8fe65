"""What precision and recomputation cost and save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from ._base import Group, arg, must


@dataclass(kw_only=True)
class PrecisionArguments(Group):
    """What is given up, of precision or of time, for memory and speed."""

    bf16: bool = arg(
        False, "Whether forward and backward compute in bfloat16 where that is safe; weights stay float32."
    )
    fp16: bool = arg(
        False, "The same in float16, with a scaled loss to keep small gradients; prefer `bf16` where it runs."
    )
    fp16_opt_level: str = arg(
        "O1",
        "How far `bf16` and `fp16` go: 'O1' computes in half precision where that is safe, 'O2' also keeps the weights "
        "in it, with float32 copies for the optimizer, 'O0' does neither.",
        choices=("O0", "O1", "O2"),
    )
    scale_loss: float | None = arg(
        None, "What the loss is multiplied with at first, for `fp16`; it adapts by itself. None starts at 65536."
    )
    bf16_full_eval: bool = arg(
        False,
        "Whether evaluations and predictions outside of training run with the weights in bfloat16: half the memory.",
    )
    fp16_full_eval: bool = arg(False, "The same in float16.")
    tf32: bool | None = arg(
        None, "Whether float32 products on a GPU of the Ampere generation or later may round to TF32; None lets be."
    )
    torch_empty_cache_steps: int | None = arg(
        None, "Steps after which unused GPU memory is given back, about a tenth slower; None never does."
    )
    gradient_checkpointing: bool = arg(
        False, "Whether backward computes activations again instead of keeping them: less memory, about a fifth slower."
    )
    gradient_checkpointing_kwargs: dict[str, Any] | None = arg(
        None, "Options for `gradient_checkpointing`, such as {'use_reentrant': False}.", json=True
    )

    def problems(self) -> Iterator[str]:
        if self.bf16 and self.fp16:
            yield "`bf16` and `fp16` are both True; a run computes in one of them, so give one."
        if self.bf16_full_eval and self.fp16_full_eval:
            yield "`bf16_full_eval` and `fp16_full_eval` are both True; evaluations run in one of them, so give one."
        yield from must(self, lambda scale: 0 < scale < inf, "give a number above 0, or None.", "scale_loss")
        yield from must(self, lambda n: n >= 1, "give at least 1 step, or None.", "torch_empty_cache_steps")
