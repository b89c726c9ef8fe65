"""Base classes and helpers of the argument groups: fields with help texts, checks, and string enums."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field
from enum import Enum
from typing import Any, TypeVar

from ...events.errors import ArgumentError

T = TypeVar("T")

_READER = "(import HfArgumentParser from trainbus)"
"""A key of the metadata of each field. The `HfArgumentParser` of transformers raises an error for this unknown key. The
error shows the key, so the user reads which parser to use."""


def arg(default: T, help: str, **meta: Any) -> T:
    """Declare an argument. Works like `dataclasses.field`.

    Args:
        default: The default value. A list or dict is copied for each instance.
        help: The text that `--help` and the reference page show.
        meta: How values are read:

            - `choices`: all valid values, as an Enum, a tuple or a mapping. With an Enum, text such as 'steps' becomes
              the member with this value.
            - `enum`: an Enum, if `choices` is a tuple or a mapping. Text becomes the member with this value. Text
              without a member stays text.
            - `path=True`: accept path objects and expand `~`.
            - `json=True`: parse text that is JSON, and convert a path object to text.
            - `object`: the class to which objects of other libraries are converted.
            - `none=True`: replace None with the default. Other trainers use None for some arguments.
            - `texts=True`: convert callbacks, given as text, dict or list, to a list of texts.
            - `repeats=True`: if the command line has the option several times, join the lists of values.
    """
    metadata = {"help": help, _READER: True, **meta}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(field: Field[Any]) -> Any:
    """Return the default value of `field`; `dataclasses.MISSING` if the field is required."""
    return field.default if field.default_factory is MISSING else field.default_factory()


@dataclass(kw_only=True)
class Group:
    """A group of arguments on one subject, with the checks of their values."""

    def problems(self) -> Iterator[str]:
        """Yield each problem as a sentence that names the field, its value and the remedy."""
        return iter(())


def must(group: Group, rule: Callable[[Any], bool], remedy: str, *names: str) -> Iterator[str]:
    """Yield a problem for each named field with a value that breaks `rule`. The value None is always valid.

    Write the rule for valid values, such as `n >= 1`. NaN fails every comparison, so such a rule also reports NaN.
    """
    for name in names:
        value = getattr(group, name)
        if value is not None and not rule(value):
            yield f"`{name}` is {value!r}; {remedy}"


def refusal(problems: Sequence[str]) -> ArgumentError:
    """Return one error that lists all `problems`."""
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return ArgumentError(problems[0] if len(problems) == 1 else f"{len(problems)} problems:{listed}")


def steps_or_share(value: float) -> bool:
    """Return whether `value` is valid: a number of steps (0, 1, 2, ...), or a fraction of the run (between 0 and 1)."""
    return 0 <= value < 1 or (value >= 1 and float(value).is_integer())


class Strategy(str, Enum):
    """Base of the string enums.

    A member equals its string, and equals members of other libraries' string enums with the same string.
    """

    def __str__(self) -> str:
        return str(self.value)


class IntervalStrategy(Strategy):
    """How often to log or to evaluate during training."""

    NO = "no"
    """Never."""
    STEPS = "steps"
    """Every N steps."""
    EPOCH = "epoch"
    """At the end of every epoch."""


class SaveStrategy(Strategy):
    """When training saves a checkpoint."""

    NO = "no"
    """Never."""
    STEPS = "steps"
    """Every N steps."""
    EPOCH = "epoch"
    """At the end of every epoch."""
    BEST = "best"
    """After each evaluation with a better metric than all evaluations before it."""
