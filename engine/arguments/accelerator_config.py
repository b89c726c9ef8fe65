"""AcceleratorConfig: the settings that transformers passes to accelerate.

On several ranks, trainbus supports fewer values of some settings than in a single process.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...events.errors import nearest
from .unique_keys import parse_json

_REMOVE = "remove it."

ONLY_ALONE: dict[str, tuple[tuple[Any, ...], str]] = {
    "split_batches": ((False,), "divide `per_device_train_batch_size` by the world size instead."),
    "dispatch_batches": ((None, False), "every process reads the data itself, so remove it."),
    "even_batches": ((True,), "processes with fewer batches would block the others, so remove it."),
}
"""Key -> its supported values on several ranks, and the remedy for other values. In a single process, these keys make
no difference."""

ALWAYS: dict[str, tuple[tuple[Any, ...], str]] = {
    "split_batches": ((True, False), _REMOVE),
    "dispatch_batches": ((True, False, None), _REMOVE),
    "even_batches": ((True, False), _REMOVE),
    "non_blocking": ((True, False), _REMOVE),
    "use_seedable_sampler": ((True,), "the order always follows from the seed and the epoch, so remove it."),
    "use_configured_state": ((True, False), _REMOVE),
}
"""Key -> its supported values, and the remedy for other values. On several ranks, an entry of `ONLY_ALONE` replaces the
entry for the same key."""

ACCUMULATION: dict[str, str] = {
    "num_steps": "The value of `gradient_accumulation_steps`.",
    "sync_each_batch": "No effect: the gradients are averaged in the last batch of a step, with the same result.",
    "sync_with_dataloader": "No effect: the last step of an epoch may have fewer batches.",
    "adjust_scheduler": "No effect: the schedule counts optimizer steps.",
}
"""Key of `gradient_accumulation_kwargs` -> its effect in trainbus."""


@dataclass
class AcceleratorConfig:
    """The settings of `accelerator_config`, with the names and defaults of transformers' class."""

    split_batches: bool = False
    """Whether a batch is divided over the ranks. With several ranks, only False is supported."""
    dispatch_batches: bool | None = None
    """False: each rank reads its own shards of a stream. None: each rank reads the whole stream and keeps its own
    samples. True works in a single process only."""
    even_batches: bool = True
    """Whether all ranks get equally many batches. With several ranks, only True is supported."""
    use_seedable_sampler: bool = True
    """Whether the order follows from the seed and the epoch. Always True."""
    non_blocking: bool = False
    """Whether batches are copied to the device while the device computes."""
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    """The key `num_steps` sets `gradient_accumulation_steps`. Other keys have no effect."""
    use_configured_state: bool = False
    """Whether accelerate is configured already. No effect: the environment of the launcher describes the ranks."""

    @classmethod
    def read(cls, given: Any) -> AcceleratorConfig:
        """Return the settings as an `AcceleratorConfig`.

        Args:
            given: None for the defaults, a mapping, the path of a JSON file, or an object of transformers' class.

        Raises:
            OSError: if the file cannot be read.
            TypeError: if a key is unknown, or if the file does not contain a JSON object.
            ValueError: if the file is not JSON.
        """
        if isinstance(given, cls):
            return given
        return cls(**cls.settings(given))

    @classmethod
    def settings(cls, given: Any) -> dict[str, Any]:
        """Convert `given` to a dict, without a check of keys and values. `given` is as in the method `read`."""
        if isinstance(given, (str, os.PathLike)):
            given = parse_json(Path(given).read_text(encoding="utf-8-sig"))
        elif given is not None and not isinstance(given, Mapping):
            given = {field.name: getattr(given, field.name) for field in fields(cls) if hasattr(given, field.name)}
        return {} if given is None else dict(given)

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> AcceleratorConfig:
        """Read the settings from a JSON file."""
        return cls.read(os.fspath(json_file))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name, without `use_configured_state`."""
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if name != "use_configured_state"}

    def __str__(self) -> str:
        """Return the settings as JSON, as the command line takes them."""
        return json.dumps(self.to_dict())

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove a setting and return its value, as `dict.pop` does. Return `default` if there is no such setting."""
        return vars(self).pop(key, default)


def accelerator_problems(settings: Mapping[str, Any], accumulate: int, world_size: int) -> Iterator[str]:
    """Yield the problems of the keys and values of `accelerator_config`.

    Args:
        settings: the keys and values.
        accumulate: the value of `gradient_accumulation_steps`.
        world_size: the number of processes.
    """
    known = [field.name for field in fields(AcceleratorConfig)]
    for name, value in settings.items():
        if name not in known:
            yield f"`accelerator_config` has {name!r}{nearest(name, known)} Known: {', '.join(known)}."
        elif name == "gradient_accumulation_kwargs":
            yield from _accumulation_problems(value or {}, accumulate)
        else:
            supported, remedy = ONLY_ALONE.get(name, ALWAYS[name]) if world_size > 1 else ALWAYS[name]
            if value not in supported:
                yield f"`accelerator_config` has {name}={value!r}, which is not supported; {remedy}"


def _accumulation_problems(given: Mapping[str, Any], accumulate: int) -> Iterator[str]:
    for name in given:
        if name not in ACCUMULATION:
            listed = ", ".join(ACCUMULATION)
            yield f"`gradient_accumulation_kwargs` has {name!r}{nearest(name, ACCUMULATION)} Known: {listed}."
    steps = given.get("num_steps", accumulate)
    if not isinstance(steps, int) or steps < 1:
        yield f"`gradient_accumulation_kwargs` has num_steps={steps!r}; set it to 1 or more."
    elif accumulate not in (1, steps):
        yield (
            f"The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is {accumulate}: "
            f"{steps} is another number of batches per step. Set only `gradient_accumulation_steps`."
        )
