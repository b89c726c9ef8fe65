"""What is done to the model for the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import torch

from ...events.errors import nearest
from ._base import Group, arg, must

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""What `torch_compile_mode` takes."""


@dataclass(kw_only=True)
class ModelArguments(Group):
    """What is done to the model for the run, and undone after it."""

    neftune_noise_alpha: float | None = arg(
        None, "Strength of uniform noise on the embeddings in training (NEFTune), about 5 to 15; None adds none."
    )
    use_cache: bool = arg(
        False,
        "Whether the model keeps keys and values of attention in training, as some adapters need; it costs memory.",
    )
    past_index: int = arg(
        -1, "Index of the model's output that is its memory of earlier batches, given back as `mems`; -1 for none."
    )
    torch_compile: bool = arg(False, "Whether the model is compiled with `torch.compile`.")
    torch_compile_backend: str | None = arg(None, "What compiles it; None takes 'inductor'. Implies `torch_compile`.")
    torch_compile_mode: str | None = arg(
        None,
        "What it is compiled for, such as 'reduce-overhead' or 'max-autotune'. Implies `torch_compile`.",
        choices=(None, *COMPILE_MODES),
    )
    use_liger_kernel: bool = arg(
        False, "Whether layers are replaced by the faster kernels of the package liger-kernel."
    )
    liger_kernel_config: dict[str, bool] | None = arg(
        None, "Which of them, such as {'rope': True}; None takes the package's choice.", json=True
    )

    def problems(self) -> Iterator[str]:
        yield from must(
            self, lambda alpha: 0 <= alpha < inf, "give a number of 0 or more, or None.", "neftune_noise_alpha"
        )
        yield from must(
            self, lambda n: n == -1 or n >= 1, "give its index, 0 being the loss, or -1 for none.", "past_index"
        )
        if (backend := self.torch_compile_backend) is not None:
            known = torch.compiler.list_backends(exclude_tags=None)
            if backend not in known:
                yield f"`torch_compile_backend` is {backend!r}{nearest(backend, known)} Known: {', '.join(known)}."
        if self.liger_kernel_config and not self.use_liger_kernel:
            yield "`liger_kernel_config` is given, and `use_liger_kernel` is False; give `use_liger_kernel=True`."
