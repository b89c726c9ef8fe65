"""What every group of arguments is written with: a field that explains itself, a check, a closed set of names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field
from enum import Enum
from typing import Any, TypeVar

from ...events.errors import ArgumentError

T = TypeVar("T")


def arg(default: T, help: str, **meta: Any) -> T:
    """Declare an argument. `help` is the one text that the reference page and the command line show.

    `meta` says how a value may be spelt: `choices` (an Enum or a tuple) are the only values taken, `path=True` expands
    `~` and takes path objects, `json=True` takes a JSON object as text, or a file's path object. A mutable default is
    copied for each instance.
    """
    metadata = {"help": help, **meta}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(field: Field[Any]) -> Any:
    """The value `field` has when nobody gives one; `dataclasses.MISSING` if somebody must."""
    return field.default if field.default_factory is MISSING else field.default_factory()


@dataclass(kw_only=True)
class Group:
    """A subject of the arguments: the fields that belong to it, and what can be wrong with their values."""

    def problems(self) -> Iterator[str]:
        """Each thing wrong, as a sentence naming the field, its value and the remedy."""
        return iter(())


def must(group: Group, rule: Callable[[Any], bool], remedy: str, *names: str) -> Iterator[str]:
    """The problems of those fields among `names` that break the `rule`; None, where a field takes it, never does.

    A rule says what is right (`n >= 1`), not what is wrong (`n < 1`): NaN fails every comparison, and so is caught.
    """
    for name in names:
        value = getattr(group, name)
        if value is not None and not rule(value):
            yield f"`{name}` is {value!r}; {remedy}"


def refusal(problems: Sequence[str]) -> ArgumentError:
    """One error for all of the `problems`, so that nobody meets them one by one."""
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return ArgumentError(problems[0] if len(problems) == 1 else f"{len(problems)} problems:{listed}")


def steps_or_share(value: float) -> bool:
    """Whether `value` counts steps (0, 1, 2, ...) or is a share of the run (between 0 and 1)."""
    return 0 <= value < 1 or (value >= 1 and float(value).is_integer())


class Strategy(str, Enum):
    """A closed set of names that are plain strings, so equal to the strings, and to other libraries' string enums."""

    def __str__(self) -> str:
        return str(self.value)


class IntervalStrategy(Strategy):
    """When something is done during training."""

    NO = "no"
    """Never."""
    STEPS = "steps"
    """Every so many steps."""
    EPOCH = "epoch"
    """At the end of every epoch."""


class SaveStrategy(Strategy):
    """When a checkpoint is written during training."""

    NO = "no"
    """Never."""
    STEPS = "steps"
    """Every so many steps."""
    EPOCH = "epoch"
    """At the end of every epoch."""
    BEST = "best"
    """After every evaluation that gave a better metric than all before it."""
