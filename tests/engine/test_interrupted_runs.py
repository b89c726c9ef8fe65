"""A run of any kind that a signal interrupts resumes as if it had not stopped. `make torture` does so at each step."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from interrupted_runs import KINDS, signalled

POINTS = [(signal.SIGINT, 3, "on_prediction_step"), (signal.SIGTERM, 6, "on_gradients")]
"""In an evaluation, or not at all if there is none after this step; and in the last step of an epoch."""


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_equals_an_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    assert signalled(tmp_path, kind, POINTS if kind != "epochs" else [(signal.SIGTERM, 4, "on_loss")]) == []
