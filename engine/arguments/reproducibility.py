"""What makes two runs the same run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, arg, must


@dataclass(kw_only=True)
class ReproducibilityArguments(Group):
    """What makes two runs the same run."""

    seed: int = arg(42, "Seed of all random number generators, set before training; from 0 to 2**32 - 1.")
    data_seed: int | None = arg(None, "Seed of the order in which samples are drawn; None takes `seed`.")
    full_determinism: bool = arg(
        False, "Whether PyTorch and CUDA may use deterministic algorithms only: slower, and some operations refuse."
    )

    def problems(self) -> Iterator[str]:
        # NumPy's generator takes no others, and all generators get the same seed.
        yield from must(self, lambda seed: 0 <= seed < 2**32, "give 0 to 2**32 - 1.", "seed")
