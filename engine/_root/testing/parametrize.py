"""parametrize_with_checks: one pytest case for each callback and each check. pytest is imported at the first call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .conformance import Examination, NotJudged, chosen_checks
from .registry import CHECKS
from .subject import Subject, as_subject

if TYPE_CHECKING:
    import pytest


@dataclass
class Case:
    """One check of one callback. Call it in the test."""

    examination: Examination
    """The callback, and the results that its checks share."""
    name: str
    """The name of the check."""

    def __call__(self) -> None:
        """Run the check on the callback. Skip the pytest case if a check that must pass first has failed.

        Raises:
            AssertionError: if the check fails. The text names the check, the observation and the remedy.
        """
        import pytest

        try:
            finding = self.examination.outcome(self.name)
        except NotJudged as reason:
            pytest.skip(str(reason))
        assert not finding, finding

    def __repr__(self) -> str:
        return f"{self.examination.subject.name}-{self.name}"


def parametrize_with_checks(
    callbacks: Iterable[Callable[..., Any] | Subject],
    *,
    only: Sequence[str] = (),
    two_processes: bool = False,
    expected_failed: Mapping[str, str] | None = None,
    **promises: Any,
) -> pytest.MarkDecorator:
    """Return a decorator that runs a test once for each combination of a callback and a check.

    The test has the parameter `check`. The call `check()` runs one check on one callback.

        @parametrize_with_checks([SkipSpikes, lambda: Notify("http://127.0.0.1:9")])
        def test_conforms(check):
            check()

    Args:
        callbacks: classes, functions that return a new callback, or `Subject`s.
        only: the names of the checks to run. Default: all checks that run in one process.
        two_processes: if `only` is empty, add the check that starts two processes. The case of this check always has
            the pytest marker `two_processes`.
        expected_failed: the checks that the callbacks must fail. Each key is the name of a check. Each value is the
            reason. The cases of these checks have the mark `pytest.mark.xfail(strict=True)`.
        **promises: fields of `Subject`, for all callbacks.

    Raises:
        ArgumentError: for the name of an unknown check, with the nearest known name.
    """
    import pytest

    cases = []
    for given in callbacks:
        subject = as_subject(given, expected_failed=expected_failed, **promises)
        examination = Examination(subject)
        for name in chosen_checks(only, two_processes, subject.expected_failed):
            marks = [pytest.mark.two_processes] if CHECKS[name].two_processes else []
            if name in subject.expected_failed:
                reason = subject.expected_failed[name]
                marks.append(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))
            cases.append(pytest.param(Case(examination, name), id=f"{subject.name}-{name}", marks=marks))
    return pytest.mark.parametrize("check", cases)
