"""check_callback and parametrize_with_checks: the conformance kit for authors of callbacks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..events import ArgumentError, nearest
from . import checks_basics, checks_conduct, checks_processes, checks_repeats
from .lab import Lab
from .registry import CHECKS, Check, Finding
from .subject import Subject, as_subject

MODULES = (checks_basics, checks_repeats, checks_conduct, checks_processes)
"""The modules that fill `CHECKS`, in the order of the checks."""


class NotJudged(Exception):
    """Raised if a check cannot run, because a check that must pass first has failed."""


@dataclass
class Examination:
    """Runs the checks of one callback. Stores the results, and the runs that several checks use."""

    subject: Subject
    """The callback."""
    seconds: dict[str, float] = field(default_factory=dict)
    """The seconds that each check took."""
    _outcomes: dict[str, str] = field(default_factory=dict)
    _scratch: Any = None
    _lab: Lab | None = None

    def outcome(self, name: str) -> str:
        """Return a text with the fault that a check finds; "" if the check passes. The first call runs the check.

        Raises:
            NotJudged: if a check that must pass first has failed.
        """
        for needed in CHECKS[name].needs:
            if self.outcome(needed):
                raise NotJudged(f"{name} cannot judge {self.subject.name}: the check {needed!r} fails")
        if name not in self._outcomes:
            began = time.perf_counter()
            self._outcomes[name] = self._run(CHECKS[name])
            self.seconds[name] = time.perf_counter() - began
        return self._outcomes[name]

    def _run(self, check: Check) -> str:
        if self._lab is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="trainbus-checks-", ignore_cleanup_errors=True)
            self._lab = Lab(self.subject, Path(self._scratch.name))
        gradients = torch.is_grad_enabled()
        try:
            check.run(self._lab)
            if torch.is_grad_enabled() != gradients:
                return self._text(check, f"a handler leaves gradients {'off' if gradients else 'on'} for later code")
        except Finding as finding:
            return self._text(check, str(finding))
        except Exception as error:
            return self._text(check, f"a handler raises {type(error).__name__}: {error}")
        finally:
            torch.set_grad_enabled(gradients)  # a later check must not fail because of this one
        return ""

    def _text(self, check: Check, observation: str) -> str:
        return f"{self.subject.name} fails the check {check.name!r}: {observation.rstrip('. ')}. {check.remedy}"

    def close(self) -> None:
        """End the trainers of the runs, and delete the files of the runs."""
        if self._lab is not None:
            self._lab.close()
            self._scratch.cleanup()
        self._lab = None

    def findings(self, names: Iterable[str]) -> dict[str, str]:
        """Run the checks with these names, and return the faults that they find: name of the check -> text.

        The result lacks checks that pass, and checks that cannot run because another check failed.
        """
        found = {}
        for name in names:
            try:
                text = self.outcome(name)
            except NotJudged:
                continue
            if text:
                found[name] = text
        return found


def check_callback(
    callback: Callable[..., Any] | Subject,
    *,
    only: Sequence[str] = (),
    two_processes: bool = False,
    expected_failed: Mapping[str, str] | None = None,
    **promises: Any,
) -> None:
    """Run the conformance checks on a callback, and raise an error if a check fails.

    Args:
        callback: a class, a function that returns a new callback, or a `Subject`.
        only: the names of the checks to run. Default: all checks that run in one process.
        two_processes: if `only` is empty, also run the check that starts two processes.
        expected_failed: the checks to leave out, because the callback fails them. Each key is the name of a check. Each
            value is the reason.
        **promises: fields of `Subject`, such as `budget=500`.

    Raises:
        AssertionError: if a check fails. The text lists the failed checks, their observations and the remedies.
        ArgumentError: for the name of an unknown check, with the nearest known name.
    """
    subject = as_subject(callback, expected_failed=expected_failed, **promises)
    names = chosen_checks(only, two_processes, subject.expected_failed)
    examination = Examination(subject)
    try:
        found = examination.findings(name for name in names if name not in subject.expected_failed)
    finally:
        examination.close()
    if found:
        raise AssertionError("\n".join(found.values()))


def chosen_checks(only: Sequence[str], two_processes: bool, expected_failed: Mapping[str, str] = {}) -> list[str]:
    """Return the names of the checks to run, in the order of `CHECKS`.

    Args:
        only: the names of the checks to run. Empty: all checks that run in one process.
        two_processes: if `only` is empty, also return the check that starts two processes.
        expected_failed: name of a check -> the reason why it fails. The function only looks for unknown names in this
            argument. The argument does not change the result.

    Raises:
        ArgumentError: for the name of an unknown check, with the nearest known name.
    """
    for name in (*only, *expected_failed):
        if name not in CHECKS:
            raise ArgumentError(f"Unknown check {name!r}{nearest(name, CHECKS)} Known: {', '.join(CHECKS)}.")
    return [
        name for name, check in CHECKS.items() if (name in only if only else two_processes or not check.two_processes)
    ]
