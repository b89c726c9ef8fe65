"""How long the run is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from ._base import Group, arg, must


@dataclass(kw_only=True)
class DurationArguments(Group):
    """How long the run is: a number of epochs, unless a number of steps is given."""

    num_train_epochs: float = arg(
        3.0, "Passes over the training data; a fraction stops inside the last one. Unused when `max_steps` is given."
    )
    max_steps: int = arg(
        -1, "Optimizer steps to train for, passing over the data as often as it takes; -1 goes by `num_train_epochs`."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda epochs: 0 <= epochs < inf, "give 0 epochs or more.", "num_train_epochs")
        yield from must(self, lambda n: n == -1 or n >= 1, "give at least 1 step, or -1 for epochs.", "max_steps")
