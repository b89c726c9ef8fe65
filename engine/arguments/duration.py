"""The arguments for the length of the run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from ...events.errors import ArgumentError
from ...events.triggers import UNITS
from ._base import Group, arg, must


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class DurationArguments(Group):
    """The length of the run, in epochs or in steps."""

    num_train_epochs: float = arg(
        3.0,
        "Number of passes over the training data. A run with 2.5 stops inside of the third epoch. Ignored if "
        "`max_steps` is set.",
    )
    max_steps: int = arg(
        -1,
        "Number of optimizer steps of the run. The run repeats the data as often as needed. -1: `num_train_epochs` "
        "sets the length.",
    )

    fast_dev_run: bool | int = arg(
        False,
        "Try the program with this number of steps, and this number of batches per evaluation. True means 1. False "
        "or 0 means a normal run. The trial run does not save, report or push.",
    )
    max_time: float | str | None = arg(
        None,
        "Longest duration of one `train()` call, in seconds or as text such as '90min'. None: no limit. At the "
        "limit, the run saves a checkpoint and stops.",
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda epochs: 0 <= epochs < inf, "set it to 0 epochs or more.", "num_train_epochs")
        yield from must(
            self, lambda n: n == -1 or n >= 1, "set it to 1 step or more, or to -1 for epochs.", "max_steps"
        )
        yield from must(
            self, lambda n: n >= 0, "set it to a number of steps, or to 0 for a normal run.", "fast_dev_run"
        )
        if self.max_time is not None:
            try:
                seconds_of(self.max_time)
            except ArgumentError as error:
                yield str(error)


def seconds_of(duration: float | str, name: str = "max_time") -> float:
    """Return a duration in seconds.

    Args:
        duration: Seconds, or text such as `90min` or `1h30min`.
        name: the name of the argument, for errors.

    Raises:
        ArgumentError: The duration cannot be read, or is not above 0.
    """
    if isinstance(duration, str):
        parts = re.findall(r"([\d.]+)\s*([a-z]*)", duration.lower())
        whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", duration.lower())
        if not parts or not whole or any(unit not in ("", *UNITS) for _, unit in parts):
            raise ArgumentError(
                f"`{name}` is {duration!r}; write seconds, or text such as '90s', '90min' or '1h30min'."
            )
        duration = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if not 0 < duration < inf:
        raise ArgumentError(f"`{name}` is {duration!r}; set it to more than 0 seconds.")
    return float(duration)
