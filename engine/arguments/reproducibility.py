"""The arguments for seeds and deterministic algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, arg, must


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ReproducibilityArguments(Group):
    """Seeds and determinism. The same values give the same run."""

    seed: int = arg(
        42, "Seed of all random number generators, from 0 to 2**32 - 1. The run sets the seed before training."
    )
    data_seed: int | None = arg(None, "Seed of the sampler, for the order of the samples. None: `seed`.")
    full_determinism: bool = arg(
        False,
        "Use only deterministic algorithms in PyTorch and CUDA. Training is slower. An operation that has no "
        "deterministic algorithm raises an error.",
    )

    def problems(self) -> Iterator[str]:
        # All generators get the same seed, and NumPy's accepts only this range.
        yield from must(self, lambda seed: 0 <= seed < 2**32, "set it to 0 to 2**32 - 1.", "seed")
