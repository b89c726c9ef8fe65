"""What precision and recomputation cost and save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._base import Group, arg


@dataclass(kw_only=True)
class PrecisionArguments(Group):
    """What is given up, of precision or of time, for memory and speed."""

    bf16: bool = arg(
        False, "Whether forward and backward compute in bfloat16 where that is safe; weights stay float32."
    )
    fp16: bool = arg(
        False, "The same in float16, with a scaled loss to keep small gradients; prefer `bf16` where it runs."
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
