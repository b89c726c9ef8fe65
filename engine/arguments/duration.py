"""How long the run is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from ...events.errors import ArgumentError
from ...events.triggers import UNITS
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

    max_time: float | str | None = arg(
        None, "How long a session of training may take: seconds, or text as '90min'; it stops and saves in time."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda epochs: 0 <= epochs < inf, "give 0 epochs or more.", "num_train_epochs")
        yield from must(self, lambda n: n == -1 or n >= 1, "give at least 1 step, or -1 for epochs.", "max_steps")
        if self.max_time is not None:
            try:
                seconds_of(self.max_time)
            except ArgumentError as error:
                yield str(error)


def seconds_of(duration: float | str) -> float:
    """Return the seconds of a duration: a number of them, or text as `90min` or `1h30min`.

    Raises:
        ArgumentError: if it is not above 0, or cannot be read.
    """
    if isinstance(duration, str):
        parts = re.findall(r"([\d.]+)\s*([a-z]*)", duration.lower())
        whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", duration.lower())
        if not parts or not whole or any(unit not in ("", *UNITS) for _, unit in parts):
            raise ArgumentError(f"`max_time` is {duration!r}; write seconds, or '90s', '90min', '1h30min'.")
        duration = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if not 0 < duration < inf:
        raise ArgumentError(f"`max_time` is {duration!r}; give more than 0 seconds.")
    return float(duration)
