"""Runs drawn at random, interrupted at a random event, resume to the recording and the weights of unbroken runs."""

from __future__ import annotations

import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.processes import TESTS
from trainbus import Callback
from trainbus.events.recording.difference import first_difference
from trainbus.events.recording.files import read

sys.path.insert(0, str(TESTS / "engine"))
from preview_configurations import Killed, drawn

EVENTS = (
    *("on_epoch_begin", "on_step_begin", "on_batch", "on_step_end", "on_epoch_end", "on_log", "on_save"),
    *("on_evaluate_begin", "on_prediction_step", "on_evaluate_end"),
)
"""Where a run is interrupted."""
NEVER = 10**9


class Interruption(Callback):
    """Interrupts the run once, at the first call from a step on."""

    def __init__(self, step: int, kills: bool) -> None:
        self.step, self.kills, self.happened = step, kills, False

    def interrupt(self, state: Any) -> None:
        if state.global_step < self.step or self.happened:
            return
        self.happened = True
        if self.kills:
            raise Killed
        signal.raise_signal(signal.SIGTERM)


def interruption(event: str, step: int, kills: bool) -> Interruption:
    """Return an interruption that handles one event."""
    handler = {event: lambda self, state: self.interrupt(state)}
    return type(f"Interruption_{event}", (Interruption,), handler)(step, kills)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_a_random_run_that_is_interrupted_at_a_random_event_equals_the_unbroken_run(tmp_path: Path, first: int) -> None:
    broken = 0
    for seed in range(first, first + 20):
        configuration, draw = drawn(seed), random.Random(f"interruption {seed}")
        event, step, kills = draw.choice(EVENTS), draw.randint(0, 12), draw.random() < 0.5
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        for folder in (whole, parts):
            shutil.rmtree(folder, ignore_errors=True)
        unbroken = configuration.trainer(whole, interruption(event, NEVER, kills))
        unbroken.train()
        resumed = configuration.trainer(parts, interruption(event, step, kills))
        try:
            resumed.train()
        except (Killed, SystemExit):
            broken += 1
            resumed = configuration.trainer(parts, interruption(event, NEVER, kills))
            resumed.train(resume_from_checkpoint="auto")
        case = f"seed {seed}: {'killed' if kills else 'SIGTERM'} in {event} from step {step} on; {configuration}"
        assert first_difference(read(whole), read(parts)) is None, case
        assert all(map(torch.equal, unbroken.model.parameters(), resumed.model.parameters())), case
    assert broken >= 5
