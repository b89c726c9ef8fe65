"""How a training ended, for the services of trackers: the exit code and the reason."""

from __future__ import annotations

from dataclasses import dataclass

_LAST_SIGNAL = 64
"""The highest number of a signal. A process that a signal ends has the exit code 128 plus this number."""


@dataclass(frozen=True)
class Outcome:
    """How a training ended. Trackers send these values to their service."""

    exit_code: int = 0
    """The exit code for the service: 0 for success, 1 for an error, 255 after Ctrl-C, and 128 plus the number of the
    signal after another signal. After `sys.exit`, the code of the program. wandb also uses 255 for Ctrl-C. The process
    itself exits with 130 after Ctrl-C."""
    reason: str = ""
    """The exception that ended the training, as text. Empty if the training ended normally."""
    preempted: bool = False
    """Whether a signal other than Ctrl-C ended the training, so that the program will probably be restarted."""
    error: str = ""
    """The error that ended the training, as text. Empty without an error, after a signal and after `sys.exit`."""


def outcome_of(error: BaseException) -> Outcome:
    """Return how a training ended. `error` is the exception that ended the training."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, KeyboardInterrupt):
        return Outcome(255, text)  # the code that marks a run as stopped, not failed
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Outcome(code, text, preempted=128 < code <= 128 + _LAST_SIGNAL)
    return Outcome(1, text, error=text)
