"""How a training ended, for the services of trackers."""

from __future__ import annotations

import signal

import pytest

from trainbus.callbacks.base.outcome import outcome_of


@pytest.mark.parametrize(
    ("error", "code", "preempted"),
    [
        (SystemExit(), 0, False),
        (SystemExit("a text"), 1, False),
        (SystemExit(128), 128, False),
        (SystemExit(128 + signal.SIGTERM), 143, True),
        (SystemExit(128 + signal.SIGRTMAX), 192, True),
        (SystemExit(200), 200, False),
        (SystemExit(255), 255, False),
        (KeyboardInterrupt(), 255, False),
        (ValueError("bad"), 1, False),
    ],
)
def test_only_exit_codes_of_signals_mean_that_the_run_was_preempted(
    error: BaseException, code: int, preempted: bool
) -> None:
    outcome = outcome_of(error)
    assert (outcome.exit_code, outcome.preempted) == (code, preempted)
