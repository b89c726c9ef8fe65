"""How a run of a tracker ended: the exit code and the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int = 0
    """0 for success, 255 after Ctrl-C, 128 plus the number of the signal after another signal, 1 for an error. After
    `sys.exit`, the code of the program."""
    reason: str = ""
    """The error or the signal that ended the training, as text. Empty if the training ended normally."""
    preempted: bool = False
    """Whether a signal other than Ctrl-C ended the run, so that the program will probably be restarted."""
    error: str = ""
    """The error that ended the run, as text. Empty if no error ended the run, and after a signal."""


def outcome_of(error: BaseException) -> Outcome:
    """Return how a run ended. `error` is the exception that ended the run."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, KeyboardInterrupt):
        return Outcome(255, text)  # the code that marks a run as stopped, not failed
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Outcome(code, text, preempted=code > 128)
    return Outcome(1, text, error=text)
