"""How a run of a tracker ended: the exit code and the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int = 0
    """0 for success, 255 after Ctrl-C, 128 plus the number for another signal, 1 for an error."""
    reason: str = ""
    """Why the training ended: the error or the signal, as text. Empty if it ended normally."""
    preempted: bool = False
    """Whether a signal other than Ctrl-C ended the run, so that the program will probably be restarted."""
    error: str = ""
    """The error, if one ended the run."""


def outcome_of(error: BaseException) -> Outcome:
    """Return how a run ended. `error`: the exception that ended it."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, KeyboardInterrupt):
        return Outcome(255, text)  # the code that marks a run as stopped, not failed
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Outcome(code, text, preempted=code > 128)
    return Outcome(1, text, error=text)
