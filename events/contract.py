"""The version of the contract between this library and plugins, and the version specifiers that plugins declare."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator

from .errors import SubscriptionError

CONTRACT = "1.0"
"""The version of the plugin contract: the events, their parameters, and the settings of `Callback`.

The second number increases when something is added or deprecated. The first number increases when something deprecated
is removed.
"""

_Version = tuple[int, ...]

_OPERATORS: dict[str, Callable[[_Version, _Version], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def fits_contract(specifier: str, version: str = CONTRACT) -> bool:
    """Return whether a version satisfies a specifier such as `>=1,<2`. Every version satisfies an empty specifier.

    Args:
        specifier: conditions that are separated by commas. A condition is an operator (`>=`, `<=`, `>`, `<`, `==`,
            `!=`) and a version of one to three numbers.
        version: the version to check. Default: `CONTRACT`.

    Raises:
        ValueError: if a part of the specifier is not a condition.
    """
    return all(compare(_numbers(version), wanted) for compare, wanted in _conditions(specifier))


def check_requires(specifier: object, label: str) -> None:
    """Check that a callback supports the plugin contract of this release.

    Args:
        specifier: the attribute `requires` of the callback: a text such as `>=1,<2`, as in `fits_contract`.
        label: the name of the class, for the error.

    Raises:
        SubscriptionError: if the callback does not support the contract, or if `specifier` is not such a text.
    """
    if not isinstance(specifier, str):
        raise SubscriptionError(f"{label}.requires is {specifier!r}. Write a text such as '>=1,<2'.")
    try:
        fits = fits_contract(specifier)
    except ValueError as error:
        raise SubscriptionError(f"{label}.requires is {specifier!r}: {error} Write it as '>=1,<2'.") from None
    if not fits:
        raise SubscriptionError(
            f"{label} requires the plugin contract {specifier}, but this trainbus has {CONTRACT}. Install a release "
            f"of its package that supports {CONTRACT}, or a trainbus with a contract {specifier}."
        )


def _conditions(specifier: str) -> Iterator[tuple[Callable[[_Version, _Version], bool], _Version]]:
    for part in filter(None, (part.strip() for part in specifier.split(","))):
        match = re.fullmatch(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+){0,2})", part)
        if match is None:
            raise ValueError(f"{part!r} is not a condition of a version.")
        yield _OPERATORS[match[1]], _numbers(match[2])


def _numbers(version: str) -> _Version:
    """Return a version as three numbers, so that `1` equals `1.0`."""
    numbers = [int(number) for number in version.split(".")]
    return (*numbers, 0, 0)[:3]
