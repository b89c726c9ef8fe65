"""Failure reports: where a rank failed, with which error, and what happened to the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...events.activity import IN_STEP, activity_of
from .consistency import format_ranks


@dataclass(frozen=True)
class FailureReport:
    """The report that a failing rank writes to the store for the other ranks."""

    rank: int
    """The rank that fails."""
    where: str
    """The activity of the rank, such as `backward of step 5`."""
    error: str
    """The error of the rank, such as `ValueError: no rows`."""
    lost: bool
    """Whether the rank fails only because it lost the connection to another rank."""


def failure_location(error: BaseException, steps: int) -> str:
    """Return where an error came from, such as `backward of step 5` or `an evaluation after step 4`.

    The text names the innermost activity that the error stores: an activity of the engine, or a handler such as
    `EarlyStopping.on_evaluate`. If the error has no activity, the text is `its program after step 4`, as in the message
    `Rank 1 failed in its program after step 4`.

    Args:
        error: the error. The functions in `events/activity.py` store activities in errors.
        steps: the number of completed steps.
    """
    activity = activity_of(error)
    if not activity:
        return f"its program after step {steps}"
    return f"{activity} of step {steps + 1}" if activity in IN_STEP else f"{activity} after step {steps}"


def error_line(error: BaseException) -> str:
    """Return the type and the message of an error, such as `ValueError: no rows`.

    If the message contains the traceback of a data worker, return the last line of the message. This line is the error
    of the worker.
    """
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return text.strip().splitlines()[-1] if "Traceback (most recent call last)" in text else text


def describe_failure(
    own: FailureReport, reports: Mapping[int, FailureReport], silent: Mapping[int, bool | None], waited: float | None
) -> str:
    """Return the text of a `RankFailure`: what happened to the other ranks, and in which activity this rank waited.

    Args:
        own: the report of this rank, which lost its connection to the other ranks.
        reports: the reports of other ranks, by rank.
        silent: the ranks that wrote no report are the keys. Each value says whether the process of the rank is alive;
            None if this is unknown.
        waited: the seconds after which this rank gave up; None if the connection broke.
    """
    meanwhile = f"Meanwhile rank {own.rank} was waiting in {own.where}"
    if waited is not None:
        meanwhile += f", for the {waited:g} seconds that `ddp_timeout` allows"
    failed = [report for report in reports.values() if not report.lost]
    if failed:
        failures = "; ".join(f"Rank {report.rank} failed in {report.where}: {report.error}" for report in failed)
        return f"{failures.rstrip('.')}. {meanwhile}."
    dead = [rank for rank, alive in silent.items() if alive is False]
    if dead:
        pronoun = "It was" if len(dead) == 1 else "They were"
        causes = (
            f"{pronoun} killed (perhaps because memory ran out), exited early, or crashed (perhaps because the ranks "
            "ran different collectives, for example if a stream gave them different numbers of batches)"
        )
        return f"{format_ranks(dead).capitalize()} ended without an error report. {causes}. {meanwhile}."
    if silent:
        return f"{_describe_silent(silent)}. {meanwhile}."
    others = " and ".join(f"rank {report.rank} gave up in {report.where}" for report in reports.values())
    return f"The ranks lost their connection: {others}. {meanwhile}."


def _describe_silent(silent: Mapping[int, bool | None]) -> str:
    subject = format_ranks([*silent]).capitalize()
    alive = all(silent.values())
    if len(silent) == 1:
        return (
            f"{subject} is alive and sent no error report: it may hang"
            if alive
            else (f"{subject} sent no error report: it was killed or hangs")
        )
    return (
        f"{subject} are alive and sent no error report: they may hang"
        if alive
        else (f"{subject} sent no error report: they were killed or hang")
    )
