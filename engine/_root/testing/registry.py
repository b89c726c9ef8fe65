"""The table of checks: each has a name, the checks that must pass before it, and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from .lab import Lab


class Finding(AssertionError):
    """A fault of the callback under test. Its text is the observation."""


@dataclass(frozen=True)
class Check:
    """One check of a callback."""

    name: str
    """The name, as `expected_failed` takes it."""
    doc: str
    """The requirement, in one sentence."""
    remedy: str
    """How to fix a callback that fails it."""
    needs: tuple[str, ...]
    """Checks without which this one cannot judge. If one of them fails, it is skipped."""
    run: Callable[[Lab], None]
    """The check. It raises a `Finding`."""
    two_processes: bool = False
    """Whether the check starts processes."""


RUNS = ("constructs", "attaches", "trains_alone", "state_round_trip")
"""The requirements of a check that trains the callback among those that log, evaluate and save."""

CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they run."""


def check(
    *, remedy: str, needs: tuple[str, ...] = ("constructs", "attaches"), two_processes: bool = False
) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Add a function to the table. The check gets its name and its docstring."""

    def add(function: Callable[[Lab], None]) -> Callable[[Lab], None]:
        doc = (function.__doc__ or "").partition("\n")[0]
        CHECKS[function.__name__] = Check(function.__name__, doc, remedy, needs, function, two_processes)
        return function

    return add


def fail(observation: str) -> NoReturn:
    """Report a fault of the callback under test."""
    raise Finding(observation)
