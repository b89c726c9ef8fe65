"""The flags that steer a run: their names, their meaning and their order."""

from __future__ import annotations

from typing import Literal

from .errors import ArgumentError, nearest

Flag = Literal["log", "evaluate", "save", "epoch_stop", "training_stop", "skip_update"]
"""The name of a flag."""

FLAGS: dict[Flag, str] = {
    "log": "log the training values of this step",
    "evaluate": "evaluate at this step",
    "save": "write a checkpoint at this step",
    "epoch_stop": "end the epoch after this step",
    "training_stop": "end the training after this step",
    "skip_update": "leave the weights unchanged in this step",
}
"""Every flag, and what the run does when it is raised."""

HF_FLAGS: tuple[Flag, ...] = ("training_stop", "epoch_stop", "save", "evaluate", "log")
"""The flags that transformers has too, in the order of transformers."""

SERVED: tuple[Flag, ...] = ("log", "evaluate", "save")
"""The flags for logs, evaluations and saves, in the order in which the run does this work."""


def flag_named(name: str) -> Flag:
    """Return a flag by its name, with or without `should_`.

    Raises:
        ArgumentError: if there is no flag with this name. The error shows the nearest known name.
    """
    flag = name.removeprefix("should_")
    for known in FLAGS:
        if flag == known:
            return known
    raise ArgumentError(f"TrainerControl has no flag {name!r}{nearest(flag, FLAGS)} The flags are: {', '.join(FLAGS)}.")
