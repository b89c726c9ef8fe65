"""How the keywords of `TrainingArguments(...)` are read: other names are translated, unknown ones refused."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from ...events.errors import closest, nearest
from ._base import default_of, refusal
from ._checks import normalised
from .aliases import ALIASES
from .unsupported import ARGUMENTS, instead

T = TypeVar("T")


class Spelling(type):
    """Reads the keywords of a call before the generated `__init__` does.

    A metaclass, because `@dataclass` generates a new `__init__` for every subclass that adds fields: wrapping that of
    the base class would leave those subclasses with neither aliases nor suggestions.
    """

    def __call__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        parameters = inspect.signature(cls).parameters
        known = set(parameters)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            known |= kwargs.keys() - ALIASES.keys()  # an `__init__` written by hand: what it takes is its own affair
        made: T = type.__call__(cls, *args, **respelt(kwargs, known, partial(_problems_of, cls)))
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of `__init__`: editors and command-line builders ask for it, and would be shown `__call__`'s."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # whichever class's it is
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _none(settings: Mapping[str, Any]) -> Iterable[str]:
    return ()


def respelt(
    kwargs: Mapping[str, Any],
    known: Collection[str],
    problems_of: Callable[[Mapping[str, Any]], Iterable[str]] = _none,
) -> dict[str, Any]:
    """Give `kwargs` under `known` names, with one `FutureWarning` for all outdated ones.

    Raises one `ArgumentError` with every name that is unknown, every two names of one argument that disagree, and
    whatever `problems_of` the values there are. For these a misspelt name counts as the one closest to it, so that the
    values are checked beside what they were to go with.

    None under another name means "not given", as in the argument files that older trainers wrote.
    """
    settings = {name: value for name, value in kwargs.items() if name in known}
    said = {name: (name, value) for name, value in settings.items()}
    guessed: dict[str, Any] = {}
    problems, outdated = [], []
    for name, value in kwargs.items():
        if name in known:
            continue
        if name in ARGUMENTS:
            if value is not None:
                problems.append(f"`{name}` is left out: {ARGUMENTS[name]}")
            continue
        if name not in ALIASES:
            problems.append(f"`{name}` is not an argument{nearest(name, known)}")
            if meant_name := closest(name, known):
                guessed[meant_name] = value
            continue
        new, translated, is_outdated, allowed = ALIASES[name]
        if value is not None and allowed and value not in allowed:
            problems.append(f"`{name}` is {value!r}; it takes {', '.join(map(repr, allowed))}.{instead(name, value)}")
            continue
        if is_outdated:
            outdated.append(f"`{name}` is now `{new}`" if new else f"`{name}` has nothing left to choose; leave it out")
        meant = None if value is None else translated(value)
        if meant is None or not new:
            continue
        if settings.setdefault(new, meant) != meant:
            other, said_there = said[new]
            problems.append(f"`{name}` is {value!r}, but `{other}` is {said_there!r}; give `{new}` only.")
        said.setdefault(new, (name, value))
    if problems:
        raise refusal([*problems, *problems_of({**guessed, **settings})])
    if outdated:
        warnings.warn(f"{', '.join(outdated)}.", FutureWarning, stacklevel=3)
    return settings


def _problems_of(cls: type[Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with values that no instance can be made with, as a name among them is."""
    trial = object.__new__(cls)
    for field in fields(cls):
        setattr(trial, field.name, normalised(field, settings.get(field.name, default_of(field))))
    yield from trial.problems()
