"""The table of checks: each has a name, the checks that must pass before it, and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from .lab import Lab


class Finding(AssertionError):
    """The error of a check that finds a fault in the tested callback. The error text describes the fault."""


@dataclass(frozen=True)
class Check:
    """One check of a callback."""

    name: str
    """The name of the check, for options such as `only` and `expected_failed`."""
    doc: str
    """The requirement, in one sentence."""
    remedy: str
    """How to fix a callback that fails the check."""
    needs: tuple[str, ...]
    """Names of checks that must pass first. If one of them fails, this check is skipped."""
    run: Callable[[Lab], None]
    """The function of the check. It raises a `Finding` if the callback has a fault."""
    two_processes: bool = False
    """Whether the check starts processes."""


RUNS = ("constructs", "attaches", "trains_alone", "state_round_trip")
"""`needs` of a check that trains the callback together with callbacks that log, evaluate and save."""

CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they run."""


def check(
    *, remedy: str, needs: tuple[str, ...] = ("constructs", "attaches"), two_processes: bool = False
) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Decorate a function to add it to the table as a check, with the name and the docstring of the function.

    Args:
        remedy: how to fix a callback that fails the check.
        needs: the names of the checks that must pass first. If one of them fails, this check is skipped.
        two_processes: whether the check starts processes.
    """

    def add(function: Callable[[Lab], None]) -> Callable[[Lab], None]:
        doc = (function.__doc__ or "").partition("\n")[0]
        CHECKS[function.__name__] = Check(function.__name__, doc, remedy, needs, function, two_processes)
        return function

    return add


def fail(observation: str) -> NoReturn:
    """Raise a `Finding`: the callback under test has a fault."""
    raise Finding(observation)
