"""The arguments for changes to the model during the run: noise, compilation, kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import torch

from ...events.errors import nearest
from ._base import Group, arg, must

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Values of `torch_compile_mode`."""


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ModelArguments(Group):
    """Changes to the model in training, such as noise, compilation and faster kernels."""

    neftune_noise_alpha: float | None = arg(
        None,
        "Scale of the uniform noise on the embeddings in training (NEFTune, arXiv:2310.05914). Usual values are 5 to "
        "15. None: no noise.",
    )
    use_cache: bool = arg(
        False,
        "Keep the attention keys and values (`config.use_cache`) in training. Some adapters need these values. True "
        "costs memory.",
    )
    past_index: int = arg(
        -1,
        "Index of the model output that holds the recurrent memory. The model receives this output as `mems` with the "
        "next batch. -1: no memory.",
        none=True,
    )
    torch_compile: bool = arg(False, "Compile the model with `torch.compile`.")
    torch_compile_backend: str | None = arg(
        None, "Backend of `torch.compile`. A value turns on `torch_compile`. None: 'inductor'."
    )
    torch_compile_mode: str | None = arg(
        None,
        "Mode of `torch.compile`. A value turns on `torch_compile`. None: the default mode.",
        choices=(None, *COMPILE_MODES),
    )
    use_liger_kernel: bool = arg(False, "Replace layers with the faster kernels of the package liger-kernel.")
    liger_kernel_config: dict[str, bool] | None = arg(
        None,
        "Which Liger kernels to use, such as {'rope': True}. None: the defaults of the package. Needs "
        "`use_liger_kernel`.",
        json=True,
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda alpha: 0 <= alpha < inf, "set it to 0 or more, or to None.", "neftune_noise_alpha")
        yield from must(
            self,
            lambda n: n == -1 or n >= 1,
            "set it to the index of the output (0 is the loss), or to -1 for none.",
            "past_index",
        )
        if (backend := self.torch_compile_backend) is not None:
            known = torch.compiler.list_backends(exclude_tags=None)
            if backend not in known:
                yield f"`torch_compile_backend` is {backend!r}{nearest(backend, known)} Known: {', '.join(known)}."
        if self.liger_kernel_config and not self.use_liger_kernel:
            yield "`liger_kernel_config` is set, but `use_liger_kernel` is False; set `use_liger_kernel=True`."
